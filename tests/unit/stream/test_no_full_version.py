"""What only looks like a full version: a single wrong byte must not turn a delta into one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.stream import (
    StreamError,
    VersionMalformed,
    directory_of,
    prune,
    published_versions,
    pull,
    survey_source,
    verify_source,
)
from hotswap.stream.layout import INDEX
from tests.unit.stream.streams import Stream, contents_of

Damage = Callable[[str], str]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    made = Stream(tmp_path, "xor", "gap", "overwrite", "xor")
    pull(made.local, made.source, 1, base_dir=made.base)
    return made


def a_wrong_byte(text: str) -> str:
    return text.replace('"delta_encoding"', '"delta_encodinf"')


def no_metadata(text: str) -> str:
    index = json.loads(text)
    del index["metadata"]
    return json.dumps(index)


def empty_metadata(text: str) -> str:
    return json.dumps(json.loads(text) | {"metadata": {}})


@pytest.mark.parametrize("damage", [a_wrong_byte, no_metadata, empty_metadata])
def test_a_delta_whose_index_lost_its_encoding_is_no_full_version(
    stream: Stream, damage: Damage
) -> None:
    index = directory_of(stream.source, 3) / INDEX
    whole = index.read_text()
    index.write_text(damage(whole))
    assert index.read_text() != whole
    for target in (3, 4):
        with pytest.raises(VersionMalformed, match="holds deltas") as caught:
            pull(stream.local, stream.source, target, base_dir=stream.base)
        assert "tensor 'layers.0.weight' is one" in str(caught.value)
        assert caught.value.local_version == 1
        assert contents_of(stream.local) == stream.at(1)
    seen = survey_source(stream.source, base_dir=stream.base).versions
    assert [one.kind for one in seen] == ["xor", "gap", None, "xor"]
    assert "holds deltas" in str(seen[2].trouble)
    faults = verify_source(stream.source, base_dir=stream.base).faults
    assert [(one.where, one.kind) for one in faults] == [
        ("weight_v000003", "VersionMalformed"),
        ("weight_v000004", "VersionMissing"),
    ]
    for keep in (1, 2):
        with pytest.raises(StreamError, match="holds deltas"):
            prune(stream.source, keep=keep)
    assert published_versions(stream.source) == (1, 2, 3, 4)
    index.write_text(whole)
    pull(stream.local, stream.source, 4, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(4)
