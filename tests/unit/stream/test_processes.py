"""Pulls in processes of their own: many of one host, and users who may not do everything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotswap.stream import directory_of, pull
from hotswap.stream.state import Reserved
from tests.markdown_blocks import ROOT
from tests.unit.stream.streams import Stream, contents_of
from tests.unit.stream.without_permission import NOBODY

WEIGHTS = "model-00001-of-00002.safetensors"


def answer_of(module: str, stream: Stream, target: int, *more: str) -> Any:
    """What ``module`` prints of a pull of ``target``."""
    spec = {
        "local": str(stream.local),
        "source": str(stream.source),
        "base": str(stream.base),
        "target": str(target),
    }
    command = [sys.executable, "-m", f"tests.unit.stream.{module}", json.dumps(spec), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_of_many_processes_one_looks_and_pulls(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "overwrite", "gap")
    for target, mode in ((2, "seed"), (3, "delta")):
        answer = answer_of("many_pulls", stream, target, "6")
        assert sorted(answer["modes"]) == sorted([mode, *["noop"] * 5])
        assert answer["looks"] == 1
        assert contents_of(stream.local) == stream.at(target)


# --- permissions


@pytest.fixture
def stream() -> Iterator[Stream]:
    """A copy at version 1 that belongs to who pulls, in a place that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="hotswap-permissions-") as name:
        root = Path(name)
        root.chmod(0o755)
        stream = Stream(root, "xor", "overwrite")
        pull(stream.local, stream.source, 1, base_dir=stream.base)
        if os.geteuid() == 0:
            for path in (stream.local, *stream.local.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        yield stream
        for path in (stream.local, Reserved(stream.local).home, *stream.source.iterdir()):
            path.chmod(0o755)


def reached(stream: Stream) -> Any:
    answer = answer_of("without_permission", stream, 2)
    assert contents_of(stream.local) == stream.at(2)
    assert answer["readable"] is True
    return answer


def refused(stream: Stream, kind: str, *says: str) -> Any:
    """Version 1 is still there, whole, and may still be read."""
    answer = answer_of("without_permission", stream, 2)
    assert (answer.get("class"), answer.get("local_version")) == (kind, 1), answer
    assert all(word in answer["said"] for word in says), answer["said"]
    assert contents_of(stream.local) == stream.at(1)
    return answer


def test_a_directory_that_may_not_be_written(stream: Stream) -> None:
    home = Reserved(stream.local).home
    home.chmod(0o555)
    refused(stream, "LocalDiskFailed", "Permission denied", str(home))
    home.chmod(0o755)
    assert reached(stream)["mode"] == "delta"


def test_a_file_that_may_not_be_written_is_made_anew(stream: Stream) -> None:
    """Found out before anything is begun: what is there stays readable all the while."""
    (stream.local / WEIGHTS).chmod(0o444)
    answer = reached(stream)
    assert answer["mode"] == "reseed"
    assert "may not be written" in answer["reason"]


def test_a_file_that_may_not_be_written_nor_made_anew(stream: Stream) -> None:
    (stream.local / WEIGHTS).chmod(0o444)
    shutil.rmtree(directory_of(stream.source, 1))
    answer = answer_of("without_permission", stream, 2)
    assert answer["class"] == "LocalDamaged"
    assert "could not be seeded again" in answer["said"]
    assert contents_of(stream.local) == stream.at(1)


def test_a_lock_that_may_not_be_opened(stream: Stream) -> None:
    lock = Reserved(stream.local).lock
    lock.chmod(0)
    answer = refused(stream, "LocalDiskFailed", "lock cannot be opened (Permission denied)")
    assert "lock cannot be opened" in answer["readable"]


def test_a_version_that_may_not_be_listed(stream: Stream) -> None:
    directory = directory_of(stream.source, 2)
    directory.chmod(0o300)
    answer = refused(stream, "SourceNotReady", "cannot be listed (Permission denied)")
    assert answer["retryable"] is True
