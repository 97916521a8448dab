"""What is written to, and version 0, are directories of this machine: a URL makes none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotswap.stream import (
    Publisher,
    SourceUnusable,
    StreamError,
    materialize,
    pull,
    survey_local,
    survey_source,
    verify_local,
    verify_source,
)
from hotswap.stream.place import local_directory
from tests.unit.stream.streams import Stream

URLS = ["s3://user:secret@bucket/run", "gs://bucket/run", "memory://run", "https://host/run"]
Call = Callable[[Stream, Any], object]

WRITTEN: dict[str, Call] = {
    "pull": lambda s, url: pull(url, s.source, 1, base_dir=s.base),
    "materialize": lambda _, url: materialize(url),
    "verify": lambda _, url: verify_local(url),
    "survey": lambda _, url: survey_local(url),
}
BASES: dict[str, Call] = {
    "pull": lambda s, url: pull(s.local, s.source, 1, base_dir=url),
    "verify": lambda s, url: verify_source(s.source, base_dir=url),
    "survey": lambda s, url: survey_source(s.source, base_dir=url),
    "publish": lambda s, url: Publisher(s.source, run="run", base_dir=url),
}
WAYS = {f"{name}-local": call for name, call in WRITTEN.items()}
WAYS |= {f"{name}-base": call for name, call in BASES.items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("url", URLS)
def test_a_url_is_refused_and_makes_no_directory(
    url: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(tmp_path / "here", "xor")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    # As text, and as what a command line that means well makes of it.
    given = [url, Path(os.path.abspath(url))] if url.startswith(("s3", "gs", "memory")) else [url]
    for place in given:
        with pytest.raises(SourceUnusable, match=r"checkpoint is \w+://\.\.\., a URL") as caught:
            WAYS[way](stream, place)
        assert isinstance(caught.value, StreamError)
        assert "secret" not in str(caught.value)
        assert "wanted a directory of this machine" in str(caught.value)
    assert os.listdir(tmp_path / "empty") == []
    assert not stream.local.exists()


@pytest.mark.parametrize("path", ["a:b/c", "/x/y:z", "s3/bucket", "relative", "/x/s3:z"])
def test_a_path_with_colons_is_a_path(path: str) -> None:
    assert local_directory(path, "it") == Path(path)
    assert local_directory(Path(path), "it") == Path(path)
