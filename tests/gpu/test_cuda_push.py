"""Pushes of device memory of another process, by handle, into a server on CUDA.

The sender is a program of its own, which prints payloads and keeps what they name until it is
told to go on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.wire import FLATTENED, decode, opened, payload_bytes
from tests.gpu.test_cuda_swap import addresses
from tests.process.evidence import Evidence, assert_equal
from tests.process.in_process import load, serving

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
PUSH = "/update_weights_from_tensor"
GIB = 2**30

SENDER = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
from hotswap.wire import flattened_bucket
CHUNKS = 3

def tensors():
    if sys.argv[1].isdecimal():
        return [("w", torch.arange(int(sys.argv[1]) // 4, dtype=torch.int32, device="cuda"))]
    files = sorted(Path(sys.argv[1]).glob("*.safetensors"))
    return [(n, t.cuda()) for file in files for n, t in load_file(file).items()]

named = tensors()
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()
for chunk in [named[at::CHUNKS] for at in range(CHUNKS)] if len(named) > CHUNKS else [named]:
    with flattened_bucket(chunk) as text:
        print(text, flush=True)
        sys.stdin.readline()
torch.cuda.ipc_collect()
print(torch.cuda.memory_allocated() - before, flush=True)
sys.stdin.read()
"""


class Sender:
    """One program that shares tensors of its device."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def said(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        """The payload has been used."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def sender(what: str) -> Iterator[Sender]:
    """One that sends a checkpoint, or so many bytes; it has ended well when the block ends."""
    with subprocess.Popen([sys.executable, "-c", SENDER, what], cwd=ROOT, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # fmt: skip
        yield Sender(process)
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


async def test_chunks_by_handle_give_a_fresh_server_at_the_same_addresses(tmp_path: Path) -> None:
    """Graphs were captured before, and read the new weights: their addresses are the same."""
    a, b = (make_checkpoint(tmp_path / f"{n}", seed=n) for n in (1, 2))
    async with serving(load(b, device="cuda")) as server:
        fresh = await Evidence.of(server.client)
    loaded = load(a, device="cuda")
    before = addresses(loaded.model)
    async with serving(loaded) as server:
        assert server.engine.describe()["cuda_graphs"] is True
        await Evidence.of(server.client)
        with sender(str(b)) as sending:
            await server.client.pause("abort")
            for _ in range(3):
                body = {"serialized_named_tensors": [sending.said()], "load_format": FLATTENED}
                await server.client.done(PUSH, **body, flush_cache=False, weight_version="7")
                sending.go_on()
            assert sending.said() == "0", "bytes of the sender that somebody still counts as used"
        assert (await server.client.call("GET", "/flush_cache")).status_code == 200
        await server.client.resume()
        assert_equal(await Evidence.of(server.client), fresh)
    assert addresses(loaded.model) == before


@pytest.mark.parametrize("load_format", [FLATTENED, "direct"])
async def test_a_push_that_is_refused_lets_the_sender_s_memory_go(
    tmp_path: Path, load_format: str
) -> None:
    """For an unknown name, by the live model. A payload in the wrong format cannot be told to
    have counters, and keeps them; the server goes on."""
    a = make_checkpoint(tmp_path / "a", seed=1)
    async with serving(load(a, device="cuda")) as server:
        before = await server.client.snapshot()
        with sender(str(2**20)) as sending:
            body = {"serialized_named_tensors": [sending.said()], "load_format": load_format}
            status, reply = await server.client.post(PUSH, **body)
            assert (status, reply["success"]) == (400, False)
            sending.go_on()
            left = int(sending.said())
            assert (left > 0) is (load_format == "direct"), left
        assert await server.client.snapshot() == before


def test_what_is_read_by_handle_against_a_copy_on_the_device(
    record_property: Callable[[str, object], None],
) -> None:
    """1 GiB: opened and copied once, against ``copy_`` of as many bytes."""
    target = torch.empty(GIB // 4, dtype=torch.int32, device="cuda")
    source = torch.arange(GIB // 4, dtype=torch.int32, device="cuda")

    def copied_s(what: torch.Tensor) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(what)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    plain_s = min(copied_s(source) for _ in range(5))
    with sender(str(GIB)) as sending:
        sent = decode(payload_bytes(sending.said()), load_format=FLATTENED)
        began = time.perf_counter()
        with opened(sent) as payloads:
            payload = payloads["w"]
            assert isinstance(payload, torch.Tensor)
            pushed_s = min(copied_s(payload) for _ in range(5))
            opened_s = time.perf_counter() - began
            assert torch.equal(target, source)
        sending.go_on()
        assert sending.said() == "0"
    # In the report of make test-gpu ARGS=--junitxml=FILE.
    record_property("push_rate_as_a_share_of_device_copy", plain_s / pushed_s)
    record_property("push_bytes_per_s", GIB / pushed_s)
    # The handle maps the very memory: a copy out of it is a copy on the device.
    assert pushed_s <= 1.5 * plain_s + 0.001, (pushed_s, plain_s, opened_s)
