"""2000 mutated checkpoints: each is answered 400, or is right; the server serves on."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from hotswap.testing.checkpoints import make_checkpoint
from hotswap.testing.server import ServerProcess
from tests.process.checkpoint_edits import shard_names
from tests.process.http_client import Client, client_of

pytestmark = [pytest.mark.process, pytest.mark.long]

CASES = 2000
INDEX = "model.safetensors.index.json"
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1e308, 0.5, "", "x", "64", "../../etc/passwd",
    "/etc/passwd", ".", "a\x00b", [], {}, [[1]], {"a": 1}, "model.safetensors", "F32", "I64",
)  # fmt: skip


def mutate_bytes(draw: random.Random, content: bytes, *, within: int | None = None) -> bytes:
    """A few bytes changed, added, taken away, or everything after some place."""
    end = len(content) if within is None else min(within, len(content))
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(max(end, 1))
        match draw.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                changed[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 2:
                del changed[at : at + draw.randrange(1, 9)]
            case _:
                del changed[draw.randrange(len(changed) + 1) :]
    return bytes(changed)


def mutate_json(draw: random.Random, content: bytes) -> bytes:
    """One value anywhere in the document replaced, removed or renamed."""
    document = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(document)
    node, key = draw.choice(places)
    if isinstance(node, dict) and draw.random() < 0.3:
        value = node.pop(key)
        if draw.random() < 0.5:
            node[key + draw.choice(("x", ".weight", " ", "\x00"))] = value
    else:
        node[key] = draw.choice(ODD)
    return json.dumps(document).encode()


def mutate_header(draw: random.Random, content: bytes) -> bytes:
    """The JSON of a safetensors header, with a length that fits, or one that does not."""
    length = int.from_bytes(content[:8], "little")
    header, payload = content[8 : 8 + length], content[8 + length :]
    match draw.randrange(3):
        case 0:
            header = mutate_json(draw, header)
        case 1:
            header = mutate_bytes(draw, header)
        case _:
            said = draw.choice((0, 1, length - 1, length + 1, 2**32, 2**63, 2**64 - 1))
            return said.to_bytes(8, "little") + header + payload
    return len(header).to_bytes(8, "little") + header + payload


def mutate(draw: random.Random, directory: Path) -> str:
    """Spoil one file; what kind of mutation it was."""
    shard = directory / draw.choice(shard_names(2))
    match draw.randrange(8):
        case 0 | 1 | 2:
            shard.write_bytes(mutate_header(draw, shard.read_bytes()))
            return "header"
        case 3:
            shard.write_bytes(mutate_bytes(draw, shard.read_bytes(), within=200))
            return "bytes"
        case 4:
            size = shard.stat().st_size
            os.truncate(shard, draw.choice((0, 7, 8, 9, size // 2, size - 1, size + 1, size * 2)))
            return "size"
        case 5:
            file = directory / draw.choice(("config.json", INDEX))
            file.write_bytes(mutate_bytes(draw, file.read_bytes()))
            return "json bytes"
        case 6:
            file = directory / "config.json"
            file.write_bytes(mutate_json(draw, file.read_bytes()))
            return "config"
        case _:
            file = directory / INDEX
            file.write_bytes(mutate_json(draw, file.read_bytes()))
            return "index"


def truth(directory: Path) -> dict[str, torch.Tensor]:
    """What the checkpoint is to the library that defines the format."""
    weight_map = json.loads((directory / INDEX).read_bytes())["weight_map"]
    files = {name: load_file(directory / name) for name in set(weight_map.values())}
    return {name: files[file][name] for name, file in weight_map.items()}


async def assert_live(client: Client, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        reply = await client.done("/get_weights_by_name", name=name, truncate_size=10_000)
        assert torch.equal(torch.tensor(reply["parameter"]), tensor.float()), name


async def test_whatever_lies_in_the_directory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    good = make_checkpoint(
        tmp_path / "good",
        hidden_size=16,
        intermediate_size=24,
        num_heads=2,
        num_kv_heads=1,
        num_layers=1,
        vocab_size=32,
        tokenizer=False,
        shards=2,
    )
    draw, counts = random.Random(2000), Counter[str]()
    with ServerProcess(good, environ={"OMP_NUM_THREADS": "1"}) as server:
        async with client_of(server.base_url) as client:
            live = await client.checksums()
            for number in range(CASES):
                given = tmp_path / "given"
                shutil.copytree(good, given)
                kind = mutate(draw, given)
                status, reply = await client.post(
                    "/update_weights_from_disk", model_path=str(given)
                )
                assert status in (200, 400), (number, kind, status, reply)
                assert reply["success"] is (status == 200)
                counts[f"{kind} {status}"] += 1
                if status == 400:
                    assert reply["error"]["message"]
                    assert await client.checksums() == live, (number, kind)
                else:
                    try:
                        tensors = await asyncio.to_thread(truth, given)
                    except (SafetensorError, OSError, ValueError, KeyError) as error:
                        raise AssertionError(f"case {number} ({kind}) was taken") from error
                    await assert_live(client, tensors)
                    live = await client.checksums()
                shutil.rmtree(given)
            await client.update(good)
            assert (await client.generate([1, 2], 4))["meta_info"]["completion_tokens"] == 4
            assert (await client.get("/health"))[0] == 200
        assert server.exit_code is None
        assert "Traceback" not in server.log
    for kind, count in sorted(counts.items()):
        record_property(kind, count)
    assert sum(count for kind, count in counts.items() if kind.endswith("400")) > CASES // 2


@pytest.mark.parametrize("name", ["config.json", INDEX, shard_names(2)[0]])
async def test_a_file_that_never_ends(tmp_path: Path, name: str) -> None:
    """A pipe without a writer: whoever opens it as a file waits for ever."""
    good = make_checkpoint(tmp_path / "good", shards=2)
    given = tmp_path / "given"
    shutil.copytree(good, given)
    (given / name).unlink()
    os.mkfifo(given / name)
    with ServerProcess(good, environ={"OMP_NUM_THREADS": "1"}) as server:
        async with client_of(server.base_url) as client:
            status, reply = await client.post("/update_weights_from_disk", model_path=str(given))

            assert (status, reply["success"]) == (400, False)
            assert name in reply["error"]["message"]
