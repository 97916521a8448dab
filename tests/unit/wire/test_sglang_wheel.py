"""The real classes of sglang read what hotswap writes, and hotswap what they write.

The wheel is installed without what it depends on, by ``make setup``; without it these fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.wire import FLATTENED, flattened_bucket, named_tensors, payload_bytes, per_rank
from tests.unit.wire.real_sglang import RUNNER, tensors
from tests.unit.wire.test_tensors import received

ROOT = Path(__file__).parents[3]


class Peer:
    """The other program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, **what: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def sglang() -> Iterator[Peer]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.unit.wire.real_sglang"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Peer(process)
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def test_the_classes_are_those_of_the_wheel(sglang: Peer) -> None:
    wheel = distribution("sglang")
    files = {str(Path(str(wheel.locate_file(file)))) for file in wheel.files or ()}
    assert "py3-none-any" in (wheel.read_text("WHEEL") or "")
    where = sglang.ask(do="where")
    assert [Path(path).name for path in where] == ["tensor_bucket.py", "common.py",
                                                   "model_runner.py"]  # fmt: skip
    assert set(where) <= files


def same(seen: dict[str, torch.Tensor], *, times: int = 1) -> None:
    assert list(seen) == [name for name, _ in tensors()]
    for name, tensor in tensors():
        assert seen[name].dtype == tensor.dtype
        assert torch.equal(seen[name], tensor * times), name


def test_we_read_their_bucket(sglang: Peer) -> None:
    same(received(payload_bytes(sglang.ask(do="write", form="bucket")), load_format=FLATTENED))


def test_we_read_their_empty_bucket(sglang: Peer) -> None:
    text = sglang.ask(do="write", form="empty")
    assert received(payload_bytes(text), load_format=FLATTENED) == {}


def test_we_read_their_list(sglang: Peer) -> None:
    same(received(payload_bytes(sglang.ask(do="write", form="list"))))


def test_we_read_their_tensors_of_each_rank(sglang: Peer) -> None:
    payload = payload_bytes(sglang.ask(do="write", form="local"))
    same(received(payload, rank=1, world_size=2), times=2)


@pytest.mark.parametrize("form", ["bucket", "list", "local"])
def test_they_read_ours(sglang: Peer, form: str) -> None:
    sent = tensors()
    written = {
        "bucket": flattened_bucket(sent),
        "list": named_tensors(sent),
        "local": per_rank(
            [(name, (torch.zeros(1), tensor)) for name, tensor in sent], module=RUNNER
        ),
    }[form]
    with written as text:
        seen = sglang.ask(do="read", form=form, text=text)
    assert seen == [[name, str(x.dtype), x.tolist()] for name, x in sent]


def test_they_read_our_empty_bucket(sglang: Peer) -> None:
    with flattened_bucket([]) as text:
        assert sglang.ask(do="read", form="bucket", text=text) == []
