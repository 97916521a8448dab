"""Each failure of a pull, in every mode and by every way in: one class, message and version."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotswap.cli import main
from hotswap.stream import BaseChanged, DiskFull, Keep, OutsideRoots, StreamError, pull
from hotswap.stream.disk import LocalDisk
from tests.tiers import mostly_long
from tests.unit.stream.broken import FAILURES, Failure
from tests.unit.stream.streams import Stream, held_contents, made, write_checkpoint

every_mode = pytest.mark.parametrize("keep", mostly_long(Keep, but=[Keep.LOG]))


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, "gap", "xor", "overwrite", length=800)


class Ways:
    """One pull by the route, the command line and the library."""

    def __init__(
        self,
        stream: Stream,
        keep: Keep,
        serve: Callable[..., Any],
        capsys: pytest.CaptureFixture[str],
        **settings: object,
    ) -> None:
        self.stream, self.keep, self.capsys = stream, keep, capsys
        self.serving = serve(model=str(stream.base), local_checkpoint=keep.value, **settings)

    async def route(self, target: int) -> tuple[int, Any]:
        body = {
            "local_checkpoint_dir": str(self.stream.local),
            "source_dir": str(self.stream.source),
            "target_version": target,
        }
        reply = await self.serving.client.post("/pull_weights", json=body)
        found = reply.json()
        return reply.status_code, {**found, "class": reply.headers.get("x-hotswap-error")}

    async def command(self, target: int) -> tuple[int, Any]:
        words = ["pull", "--local-checkpoint", self.keep.value, "--target", str(target), "--json"]
        for flag in ("source", "local", "base"):
            words += [f"--{flag}", str(getattr(self.stream, flag))]
        # Hooks of a command have an event loop of their own.
        code = await asyncio.to_thread(main, words)
        return code, json.loads(self.capsys.readouterr().out)

    def library(self, target: int, *, base: Path | None = None) -> StreamError:
        s = self.stream
        with pytest.raises(StreamError) as caught:
            pull(s.local, s.source, target, base_dir=base or s.base, threads=1, keep=self.keep)
        return caught.value

    async def assert_refused(self, target: int, wanted: Failure, *, at: int) -> None:
        """By all three, and version ``at`` is still there, whole."""
        kind = wanted.kind.__name__
        status, body = await self.route(target)
        assert (status, body["error"]["code"]) == (wanted.status, wanted.code), body
        assert (body["class"], body["success"]) == (kind, False)
        code, printed = await self.command(target)
        error = printed["error"]
        assert (code, error["exit_code"], error["class"]) == (wanted.exit_code, code, kind)
        assert error["weights"] == "untouched"
        raised = self.library(target)
        assert type(raised) is wanted.kind
        for retryable in (body["retryable"], error["retryable"], raised.retryable):
            assert retryable is wanted.retryable
        for version in (body["local_version"], error["local_version"], raised.local_version):
            assert version == at
        for message in (body["message"], error["message"], str(raised)):
            assert wanted.says in message
            assert message.endswith(f"{self.stream.local} holds version {at}, whole")
        assert held_contents(self.stream.local) == self.stream.at(at)


@every_mode
@pytest.mark.parametrize("name", FAILURES)
async def test_what_is_wrong_with_a_source(
    name: str,
    keep: Keep,
    stream: Stream,
    serve: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ways, wanted = Ways(stream, keep, serve, capsys), FAILURES[name]
    for target in (0, 1):
        assert (await ways.route(target))[0] == 200
    wanted.breaks(stream.source)
    await ways.assert_refused(3, wanted, at=1)


@every_mode
async def test_a_disk_that_is_full(
    keep: Keep,
    stream: Stream,
    serve: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = Ways(stream, keep, serve, capsys)
    for target in (0, 1):
        assert (await ways.route(target))[0] == 200

    def refusing(_disk: LocalDisk, _fd: int, _offset: int, _content: memoryview) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    wanted = Failure(
        breaks=str, kind=DiskFull, status=500, code="disk_full", says="make room and pull again"
    )
    with monkeypatch.context() as patched:
        patched.setattr(LocalDisk, "write", refusing)
        await ways.assert_refused(3, wanted, at=1)
    assert (await ways.route(3))[1]["local_version"] == 3
    assert held_contents(stream.local) == stream.at(3)


@every_mode
async def test_a_place_outside_the_roots(
    keep: Keep,
    stream: Stream,
    serve: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    first = Ways(stream, keep, serve, capsys)
    assert (await first.route(1))[0] == 200
    (tmp_path / "inside").mkdir()
    for root in ("source_root", "local_root"):
        ways = Ways(stream, keep, serve, capsys, **{root: (str(tmp_path / "inside"),)})
        status, body = await ways.route(2)
        assert (status, body["class"], body["retryable"]) == (403, "OutsideRoots", False)
        assert held_contents(stream.local) == stream.at(1)
    # A command has no roots, and keeps its directories apart all the same.
    stream.source = stream.local
    code, printed = await first.command(2)
    assert (code, printed["error"]["class"]) == (1, "OutsideRoots")
    assert isinstance(first.library(2), OutsideRoots)


@every_mode
async def test_another_base_than_the_stream_began_with(
    keep: Keep,
    stream: Stream,
    serve: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    right = Ways(stream, keep, serve, capsys)
    assert (await right.route(1))[0] == 200
    base = stream.base
    stream.base = write_checkpoint(tmp_path / "other", made(9, length=800))
    wanted = Failure(
        breaks=str,
        kind=BaseChanged,
        status=409,
        code="base_changed",
        says=f"the local checkpoint was made from the base {base}",
    )
    await Ways(stream, keep, serve, capsys).assert_refused(2, wanted, at=1)


@every_mode
async def test_a_copy_that_is_damaged_is_made_anew_or_told_of(
    keep: Keep,
    stream: Stream,
    serve: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    ways = Ways(stream, keep, serve, capsys)

    async def damaged() -> None:
        assert (await ways.route(1))[0] == 200
        for path in stream.local.glob("*.safetensors"):
            content = bytearray(path.read_bytes())
            content[-500:] = bytes(500)
            path.write_bytes(content)

    for pulls in (ways.route, ways.command):
        await damaged()
        _, told = await pulls(3)
        assert told["mode"] == "reseed"
        assert "has the checksum" in told["reason"]
        assert held_contents(stream.local) == stream.at(3)

    stream.base.rename(tmp_path / "away")
    assert (await ways.route(3))[0] == 200  # what is applied needs no base
    (tmp_path / "away").rename(stream.base)
    await damaged()
    stream.base.rename(tmp_path / "away")
    status, body = await ways.route(3)
    assert (status, body["class"], body["local_version"]) == (409, "LocalDamaged", None)
    assert "could not be seeded again" in body["message"]
    (tmp_path / "away").rename(stream.base)
    assert (await ways.route(3))[1]["mode"] == "reseed"
    assert held_contents(stream.local) == stream.at(3)
