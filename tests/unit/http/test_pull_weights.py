"""``/pull_weights``: what it takes, what it answers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotswap.api_keys import ApiKey
from hotswap.http.errors import GR_TABLE
from hotswap.plugin_hooks import PreReadHook
from hotswap.plugins import Plugins
from hotswap.stream import directory_of, errors, reading
from hotswap.stream import pull as library_pull
from hotswap.stream.disk import LocalDisk
from hotswap.testing.asgi_call import AsgiCall
from tests.unit.stream.streams import Stream, contents_of, edit_index

PULL = "/pull_weights"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, "xor", "overwrite", "xor")


def asked(stream: Stream, target: object, **other: object) -> dict[str, object]:
    return {
        "local_checkpoint_dir": str(stream.local),
        "source_dir": str(stream.source),
        "target_version": target,
        **other,
    }


@pytest.fixture(params=["gr", "sglang"])
def serving(request: pytest.FixtureRequest, serve: Callable[..., Any], stream: Stream) -> Any:
    return serve(model=str(stream.base), dialect=request.param)


async def test_it_says_what_it_did_and_what_it_cost(serving: Any, stream: Stream) -> None:
    replies = []
    for target in (0, 1, 3, 3, 2):
        status, body = await serving.json("POST", PULL, json=asked(stream, target))
        assert status == 200, body
        assert (body["success"], body["message"], body["error_message"]) == (True, "Success.", None)
        assert body["local_version"] == target
        assert contents_of(stream.local) == stream.at(target)
        replies.append(body)
    assert [body["mode"] for body in replies] == ["seed", "delta", "fold", "noop", "reseed"]
    assert [body["versions"] for body in replies] == [[], [1], [2, 3], [], [1, 2]]
    assert replies[1]["read_bytes"] > 0
    assert replies[1]["written_bytes"] > 0
    assert {"read", "apply", "write", "sync"} <= replies[1]["seconds"].keys()
    assert replies[3]["written_bytes"] == 0
    assert "is behind the applied 3" in replies[4]["reason"]
    # Nothing of this takes a turn among commands, nor changes what is live.
    assert serving.commands.calls == []
    assert serving.app.state.served.model_path == str(stream.base)


async def test_fields_are_as_lax_as_everywhere(serving: Any, stream: Stream) -> None:
    body = asked(stream, "1", rid=None, http_worker_ipc="x", unknown=3)
    status, reply = await serving.json("POST", PULL, content=json.dumps(body))
    assert (status, reply["local_version"]) == (200, 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"local_checkpoint_dir": None}, "local_checkpoint_dir"),
        ({"source_dir": ""}, "source_dir"),
        ({"source_dir": "a\0b"}, "source_dir"),
        ({"target_version": None}, "target_version"),
        ({"target_version": -1}, "target_version"),
        ({"target_version": 10**18}, "target_version"),
        ({"target_version": 1.5}, "target_version"),
        ({"target_version": "one"}, "target_version"),
    ],
)
async def test_what_is_no_request_is_a_400_that_names_the_field(
    serving: Any, stream: Stream, change: dict[str, object], named: str
) -> None:
    status, body = await serving.json("POST", PULL, json=asked(stream, 1) | change)
    assert (status, body["success"]) == (400, False)
    assert named in body["message"]
    assert not stream.local.exists()


def test_every_stream_error_has_a_row() -> None:
    public = [getattr(errors, name) for name in errors.__all__]
    kinds = {thing for thing in public if isinstance(thing, type)}
    assert kinds - set(GR_TABLE) == {errors.StreamError}


# --- failures: what is broken, the class, GR's status and code


def _unpublished(stream: Stream) -> None:
    shutil.rmtree(directory_of(stream.source, 3))


def _without_its_index(stream: Stream) -> None:
    (directory_of(stream.source, 3) / "model.safetensors.index.json").unlink()


def _with_a_gap(stream: Stream) -> None:
    shutil.rmtree(directory_of(stream.source, 2))


def _misnumbered(stream: Stream) -> None:
    edit_index(directory_of(stream.source, 3), version="000004")


def _damaged(stream: Stream) -> None:
    path = directory_of(stream.source, 3) / "model-00000-of-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-40:] = bytes(40)
    path.write_bytes(content)


def _in_an_unknown_encoding(stream: Stream) -> None:
    edit_index(directory_of(stream.source, 3), delta_encoding="rot13")


def _with_an_unknown_checksum(stream: Stream) -> None:
    edit_index(directory_of(stream.source, 3), checksum_format="crc8")


def _out_of_order(stream: Stream) -> None:
    edit_index(directory_of(stream.source, 3), base_version="000003")


def _damaged_here_too(stream: Stream) -> None:
    """The copy has other bytes than the last pull left, and cannot be made anew."""
    path = next(stream.local.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-8000:] = bytes(8000)
    path.write_bytes(content)
    shutil.rmtree(directory_of(stream.source, 1))


FAILURES: list[tuple[Callable[[Stream], None], str, int, str, bool, tuple[str, ...]]] = [
    (_unpublished, "SourceNotReady", 409, "source_not_ready", True, ("weight_v000003",)),
    (_without_its_index, "SourceNotReady", 409, "source_not_ready", True, ("weight_v000003",)),
    (_with_a_gap, "VersionMissing", 409, "version_missing", False, ("version 2 is missing",)),
    (_misnumbered, "VersionMalformed", 400, "version_malformed", False, ("version 4",)),
    (_damaged, "DeltaDamaged", 400, "delta_damaged", False, ("layers.",)),
    (_in_an_unknown_encoding, "UnknownEncoding", 400, "unknown_encoding", False, ("rot13",)),
    (_with_an_unknown_checksum, "UnknownEncoding", 400, "unknown_encoding", False, ("crc8",)),
    (_out_of_order, "OutOfOrder", 400, "out_of_order", False, ("builds on 3",)),
]


@pytest.mark.parametrize(
    ("breaks", "kind", "status", "code", "retryable", "says"), FAILURES, ids=lambda x: str(x)[:24]
)
async def test_a_failure_leaves_a_whole_version_and_says_which(
    serving: Any,
    stream: Stream,
    breaks: Callable[[Stream], None],
    kind: str,
    status: int,
    code: str,
    retryable: bool,
    says: tuple[str, ...],
) -> None:
    assert (await serving.json("POST", PULL, json=asked(stream, 1)))[0] == 200
    breaks(stream)
    reply = await serving.client.post(PULL, json=asked(stream, 3))
    body = reply.json()

    is_gr = serving.app.state.served.dialect.name == "gr"
    assert reply.status_code == (status if is_gr else 400)
    assert reply.headers["x-hotswap-error"] == kind
    assert body["success"] is False
    assert body["error_message"] == body["message"]
    assert (body["retryable"], body["local_version"]) == (retryable, 1)
    assert all(word in body["message"] for word in says), body["message"]
    assert body["message"].endswith(f"{stream.local} holds version 1, whole")
    if is_gr:
        assert (body["error"]["code"], body["error"]["retryable"]) == (code, retryable)
    assert contents_of(stream.local) == stream.at(1)


async def test_a_damaged_copy_is_made_anew_or_told_of(serving: Any, stream: Stream) -> None:
    await serving.json("POST", PULL, json=asked(stream, 2))
    kept = stream.source.rename(stream.source.with_name("kept"))
    shutil.copytree(kept, stream.source)
    _damaged_here_too(stream)
    reply = await serving.client.post(PULL, json=asked(stream, 3))
    body = reply.json()
    assert reply.headers["x-hotswap-error"] == "LocalDamaged"
    assert "could not be seeded again" in body["message"]
    assert body["message"].endswith("holds no whole version")
    assert body["local_version"] is None

    shutil.copytree(directory_of(kept, 1), directory_of(stream.source, 1))
    status, body = await serving.json("POST", PULL, json=asked(stream, 3))
    assert (status, body["mode"]) == (200, "reseed")
    assert contents_of(stream.local) == stream.at(3)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, "DiskFull"), (errno.EIO, "LocalDiskFailed")]
)
async def test_a_disk_that_refuses(
    serving: Any, stream: Stream, number: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serving.json("POST", PULL, json=asked(stream, 1))

    def refusing(_disk: LocalDisk, _fd: int, _offset: int, _content: memoryview) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(LocalDisk, "write", refusing)
        reply = await serving.client.post(PULL, json=asked(stream, 2))
    assert reply.headers["x-hotswap-error"] == kind
    assert reply.json()["local_version"] == 1
    assert contents_of(stream.local) == stream.at(1)
    assert (await serving.json("POST", PULL, json=asked(stream, 2)))[0] == 200


async def test_outside_the_roots(serve: Callable[..., Any], stream: Stream, tmp_path: Path) -> None:
    serving = serve(model=str(stream.base), local_root=(str(tmp_path / "base"),))
    reply = await serving.client.post(PULL, json=asked(stream, 1))
    assert (reply.status_code, reply.headers["x-hotswap-error"]) == (403, "OutsideRoots")
    assert reply.json()["error"]["code"] == "outside_roots"
    assert "start the server with another root" in reply.json()["message"]
    assert not stream.local.exists()


async def test_a_source_outside_the_roots_leaves_what_was_there(
    serve: Callable[..., Any], stream: Stream, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copytree(stream.source, inside / "source")
    serving = serve(model=str(stream.base), source_root=(str(inside),))
    told = asked(stream, 2, source_dir=str(inside / "source"))
    assert (await serving.json("POST", PULL, json=told))[0] == 200
    reply = await serving.client.post(PULL, json=asked(stream, 3))
    body = reply.json()
    assert (reply.status_code, body["local_version"]) == (403, 2)
    assert body["message"].endswith(f"{stream.local} holds version 2, whole")
    assert contents_of(stream.local) == stream.at(2)


async def test_a_base_that_was_changed(serving: Any, stream: Stream) -> None:
    await serving.json("POST", PULL, json=asked(stream, 2))
    os.utime(next(stream.base.glob("*.safetensors")), ns=(1, 1))
    reply = await serving.client.post(PULL, json=asked(stream, 1))
    assert reply.headers["x-hotswap-error"] == "BaseChanged"
    assert reply.json()["local_version"] == 2
    assert reply.json()["message"].endswith(f"{stream.local} holds version 2, whole")


# --- who may, who leaves


async def test_it_needs_what_an_update_needs(serve: Callable[..., Any], stream: Stream) -> None:
    closed = serve(model=str(stream.base), allow_weight_update=False)
    status, body = await closed.json("POST", PULL, json=asked(stream, 1))
    assert (status, body["error"]["code"]) == (403, "route_disabled")
    keyed = serve(model=str(stream.base), api_key=ApiKey("api"), admin_api_key=ApiKey("admin"))
    for key, wanted in ((None, 401), ("api", 401), ("admin", 200)):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        reply = await keyed.client.post(PULL, json=asked(stream, 0), headers=headers)
        assert reply.status_code == wanted
        assert stream.local.exists() is (wanted == 200)


async def test_a_client_that_goes_away_leaves_a_whole_version(
    serve: Callable[..., Any], stream: Stream
) -> None:
    arrived, release = asyncio.Event(), asyncio.Event()

    async def wait(_source: str, _version: str | None) -> None:
        arrived.set()
        await release.wait()

    plugins = Plugins(pre_read=(PreReadHook(name="waits", call=wait),))
    serving = serve(model=str(stream.base), plugins=plugins)
    async with AsgiCall(serving.app, "POST", PULL, asked(stream, 2)) as call:
        await arrived.wait()
        call.disconnect()
        release.set()
        assert await call.finished() == []
    assert contents_of(stream.local) == stream.at(2)
    with reading(stream.local, timeout_s=0):
        pass
    status, body = await serving.json("POST", PULL, json=asked(stream, 2))
    assert (status, body["mode"]) == (200, "noop")


async def test_a_second_server_on_the_same_directory_finds_it_done(
    serve: Callable[..., Any], stream: Stream
) -> None:
    """Two processes of one host share a lock; what one applied is nothing to do for the other."""
    first, second = (serve(model=str(stream.base)) for _ in range(2))
    replies = await asyncio.gather(
        *(one.json("POST", PULL, json=asked(stream, 3)) for one in (first, second))
    )
    assert sorted(body["mode"] for _, body in replies) == ["noop", "seed"]
    assert contents_of(stream.local) == stream.at(3)


# --- what is told of it


async def test_events_tell_of_every_step(serving: Any, stream: Stream) -> None:
    await serving.json("POST", PULL, json=asked(stream, 1))
    await serving.json("POST", PULL, json=asked(stream, 9))
    _, listed = await serving.json("GET", "/hotswap/v1/events?stream=false&after=0")
    told = [event for event in listed["events"] if event["event"] == "pull"]
    phases = {number: [e["phase"] for e in told if e["pull"] == number] for number in (1, 2)}
    assert phases[1][0] == "received"
    assert {"seed"} < set(phases[1])
    assert phases[1][-1] == "done"
    assert phases[2] == ["received", "source_not_ready"]
    (done,) = [event for event in told if event["phase"] == "done"]
    assert (done["mode"], done["target"], done["local"]) == ("seed", 1, str(stream.local))
    assert done["written_bytes"] > 0
    assert told[-1]["local_version"] == 1


async def test_metrics_count_them(serving: Any, stream: Stream) -> None:
    for target in (1, 2, 2, 9):
        await serving.json("POST", PULL, json=asked(stream, target))
    text = (await serving.client.get("/metrics")).text
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
    name = 'hotswap_pulls_total{mode="%s",outcome="%s"}'
    for mode in ("seed", "delta", "noop"):
        assert float(shown[name % (mode, "done")]) == 1
    assert float(shown[name % ("none", "source_not_ready")]) == 1
    assert float(shown["hotswap_pull_local_version"]) == 2
    assert float(shown["hotswap_pulls_in_progress"]) == 0
    assert float(shown["hotswap_pull_read_bytes_total"]) > 0
    assert float(shown["hotswap_pull_written_bytes_total"]) > 0
    assert float(shown["hotswap_pull_elapsed_seconds_count"]) == 3
    assert float(shown['hotswap_pull_phase_seconds_total{phase="apply"}']) > 0


async def test_the_library_and_the_server_share_a_directory(serving: Any, stream: Stream) -> None:
    library_pull(stream.local, stream.source, 1, base_dir=stream.base)
    status, body = await serving.json("POST", PULL, json=asked(stream, 2))
    assert (status, body["mode"], body["reason"]) == (200, "delta", None)


async def test_an_update_without_a_strategy_takes_the_server_s(serve: Callable[..., Any]) -> None:
    def never(_options: object) -> Any:
        raise AssertionError("the fake controller opens no strategy")

    plugins = Plugins(strategies=dict.fromkeys(("disk", "delta-pull"), never))
    for told, wanted in (({}, "disk"), ({"load_strategy": "delta-pull"}, "delta-pull")):
        serving = serve(plugins=plugins, **told)
        for body, strategy in (({}, wanted), ({"strategy": "disk"}, "disk")):
            status, _ = await serving.json(
                "POST", "/update_weights_from_disk", json={"model_path": "/m", **body}
            )
            assert status == 200
            assert serving.commands.received[-1].strategy == strategy


async def test_a_copy_is_read_when_that_is_asked_for(serving: Any, stream: Stream) -> None:
    await serving.json("POST", PULL, json=asked(stream, 2))
    path = stream.local / "model-00001-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    _, body = await serving.json("POST", PULL, json=asked(stream, 2))
    assert body["mode"] == "noop"
    _, body = await serving.json("POST", PULL, json=asked(stream, 2, check=True))
    assert (body["success"], body["mode"]) == (True, "reseed")
    assert "has the checksum" in body["reason"]
    assert contents_of(stream.local) == stream.at(2)
