"""A server asks object stores below the URLs that it was started with, and tells no password."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hotswap.stream.object_store as object_store
from hotswap.pulls import Puller, PullNews
from hotswap.stream import OutsideRoots, SourceUnusable
from hotswap.stream.objects import Objects
from hotswap.stream.place import place_of
from tests.unit.http.conftest import ServingFactory
from tests.unit.stream.faulty_store import uploaded
from tests.unit.stream.streams import Stream, contents_of

PASSWORD = "hunter2"
WITH_PASSWORD = f"s3://key:{PASSWORD}/x@bucket/run"


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, "xor", "gap")


@pytest.fixture
def url(stream: Stream, tmp_path: Path) -> Iterator[str]:
    """The stream in the store of this process, under a name of its own."""
    place = place_of(f"memory://{tmp_path.name}/run")
    assert isinstance(place, Objects)
    uploaded(stream.source, place)
    yield str(place)
    for path in place.names():
        directory, _, name = path.partition("/")
        target = place / directory / name
        target.store.delete(target.url)


def puller_of(stream: Stream, *roots: str) -> Puller:
    return Puller.from_options({"model": str(stream.base), "source-root": roots})


async def test_a_url_below_a_root_is_pulled(stream: Stream, url: str) -> None:
    puller = puller_of(stream, url.removesuffix("/run"))
    report = await puller.pull(str(stream.local), url, 2)
    assert report.version == 2
    assert contents_of(stream.local) == stream.at(2)
    assert puller.holds(stream.local, place_of(url), 2, looks=True)
    assert not puller.holds(stream.local, place_of(f"{url}-other"), 2, looks=False)
    assert (await puller.pull(str(stream.local), f"{url}/", 2)).mode == "noop"


async def test_one_connection_is_for_all_pulls(
    stream: Stream, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, connected = vars(object_store)["_connected"], list[str]()

    def counted(scheme: str) -> object:
        connected.append(scheme)
        return connect(scheme)

    monkeypatch.setattr(object_store, "_connected", counted)
    puller = puller_of(stream, url)
    for version in (1, 2):
        await puller.pull(str(stream.local), url, version)
    assert puller.holds(stream.local, place_of(url), 2, looks=True)
    assert contents_of(stream.local) == stream.at(2)
    assert connected == ["memory"]


async def test_other_urls_are_refused(stream: Stream, url: str, tmp_path: Path) -> None:
    heard = list[PullNews]()
    for roots, told in (
        ((), "is a URL, and this server pulls from directories only"),
        ((str(tmp_path),), "is not below a URL of the roots"),
        ((f"{url}/more",), "is not below a URL of the roots"),
        (("s3://bucket",), "is not below a URL of the roots"),
    ):
        puller = puller_of(stream, *roots)
        with pytest.raises(OutsideRoots, match=told):
            await puller.pull(str(stream.local), url, 1)
    with pytest.raises(OutsideRoots, match="outside the roots"):
        await puller.pull(str(stream.local), str(stream.source), 1)
    puller.observe(heard.append)
    with pytest.raises(SourceUnusable) as caught:
        await puller.pull(str(stream.local), WITH_PASSWORD, 0)
    assert PASSWORD not in str(caught.value)
    assert heard == []
    assert not stream.local.exists()
    # Version 0 is what the server was started with, and no source is looked at.
    assert (await puller_of(stream).pull(str(stream.local), url, 0)).version == 0


@pytest.fixture
async def serve() -> Any:
    factory = ServingFactory()
    yield factory
    for serving in factory.made:
        await serving.client.aclose()


async def test_over_http(
    serve: Callable[..., Any],
    stream: Stream,
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    serving = serve(model=str(stream.base), source_root=(url,))

    async def asked(source: str, local: Path | str = stream.local) -> tuple[int, str]:
        body = {"local_checkpoint_dir": str(local), "source_dir": source, "target_version": 2}
        reply = await serving.client.post("/pull_weights", json=body)
        return reply.status_code, reply.text

    status, text = await asked(url)
    assert (status, json.loads(text)["local_version"]) == (200, 2)
    assert contents_of(stream.local) == stream.at(2)
    status, text = await asked("memory://elsewhere/run")
    assert (status, json.loads(text)["error"]["code"]) == (403, "outside_roots")
    assert f"--source-root memory://elsewhere/run; {stream.local} holds version 2" in text
    for source in (WITH_PASSWORD, f"{WITH_PASSWORD}\0", f"ftp://key:{PASSWORD}@host"):
        status, text = await asked(source)
        assert (status, json.loads(text)["error"]["code"]) == (400, "source_unusable")
        assert PASSWORD not in text
    status, text = await asked(url, f"s3://key:{PASSWORD}@bucket")
    assert (status, "wanted a directory of the server" in text) == (400, True)
    _, listed = await serving.json("GET", "/hotswap/v1/events?stream=false&after=0")
    shown = json.dumps(listed) + (await serving.client.get("/metrics")).text + caplog.text
    assert url in shown
    assert PASSWORD not in shown + text
