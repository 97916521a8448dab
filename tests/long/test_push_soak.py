"""500 pushes, every third malformed, producers dying in the middle: nothing grows (A27)."""

from __future__ import annotations

import base64
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.evidence import Evidence, assert_equal
from tests.process.fresh import fresh
from tests.process.http_client import Client, client_of
from tests.process.process_memory import anon_bytes, descriptors
from tests.process.pushing import Trainer
from tests.untraced import UNTRACED

pytestmark = [pytest.mark.process, pytest.mark.long]

WARM_UPS, PUSHES, DEATH_EVERY = 20, 500, 100
GROWTH_BYTES = 20 * 2**20
PATH = "/update_weights_from_tensor"


def malformed(payload: str, draw: random.Random) -> dict[str, Any]:
    """A request that nothing of may become live."""
    raw = bytearray(base64.b64decode(payload))
    kind = draw.choice(["cut", "format", "count", "text", "head", "field"])
    good: dict[str, Any] = {
        "serialized_named_tensors": [payload],
        "load_format": "flattened_bucket",
    }
    if kind == "format":
        return good | {"load_format": draw.choice(["direct", "os.system"])}
    if kind == "count":
        return good | {"serialized_named_tensors": [payload] * draw.choice([0, 2, 3])}
    if kind == "text":
        return good | {"serialized_named_tensors": ["no base64 at all!"]}
    if kind == "field":
        return good | {"selector": "draft"}
    if kind == "head":
        raw[2] = ord("P")
        return good | {"serialized_named_tensors": [base64.b64encode(raw).decode()]}
    cut = raw[: draw.randrange(len(raw))]
    return good | {"serialized_named_tensors": [base64.b64encode(cut).decode()]}


def names_its_memory(body: dict[str, Any]) -> bool:
    """Whether the segment stands in what the server was sent."""
    texts = [text for text in body["serialized_named_tensors"] if " " not in text]
    return any(re.search(rb"/torch_\d+_\d+_\d+\D", base64.b64decode(text)) for text in texts)


class Pushes:
    """A producer after the other, and how many segments each of them has lost by requests in
    which they were not named."""

    def __init__(self, client: Client, directories: list[Path]) -> None:
        self._client = client
        self._directories = directories
        self._draw = random.Random(7)
        self._lost = 0
        self.trainer = Trainer()

    async def push(self, number: int) -> int:
        """One push of all the weights; the status of its reply."""
        shared = await self.trainer.share(self._directories[number % len(self._directories)])
        (payload,) = shared["payloads"]
        body: dict[str, Any] = {
            "serialized_named_tensors": [payload],
            "load_format": "flattened_bucket",
            "scope": "full",
            "weight_version": str(number),
        }
        if number % 3 == 0:
            body = malformed(payload, self._draw)
        if number % DEATH_EVERY == DEATH_EVERY - 1:
            self.trainer.kill()
            self._lost = 0
            return (await self._client.post(PATH, **body))[0]
        status, _ = await self._client.post(PATH, **body)
        self._lost += not names_its_memory(body)
        assert await self.trainer.release(shared["number"]) == self._lost
        return status


async def test_500_pushes_every_third_malformed(tmp_path: Path) -> None:
    a, *others = [make_checkpoint(tmp_path / f"{seed}", seed=seed) for seed in range(3)]
    counts = Counter[int]()
    with ServerProcess(a, environ={"OMP_NUM_THREADS": "1", **UNTRACED}) as server:
        async with client_of(server.base_url) as client:
            pushes = Pushes(client, others)
            try:
                for number in range(WARM_UPS):
                    await pushes.push(number)
                before = descriptors(server.pid), anon_bytes(server.pid)
                for number in range(WARM_UPS, WARM_UPS + PUSHES):
                    counts[await pushes.push(number)] += 1
            finally:
                pushes.trainer.close()
                removed = forget_segments(pushes.trainer.pids)
            assert set(counts) == {200, 400}
            assert counts[400] == sum(n % 3 == 0 for n in range(WARM_UPS, WARM_UPS + PUSHES))
            assert descriptors(server.pid) <= before[0] + 1
            assert anon_bytes(server.pid) <= before[1] + GROWTH_BYTES
            assert removed <= counts[400], "of requests that could not be read, and no others"
            last = others[max(n for n in range(WARM_UPS + PUSHES) if n % 3) % len(others)]
            assert_equal(await Evidence.of(client), await fresh(last))


def forget_segments(pids: set[int]) -> int:
    """Remove what producers have lost, which is how torch leaves it; how much that was."""
    left = [path for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")]
    for path in left:
        path.unlink()
    return len(left)
