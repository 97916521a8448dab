"""What only looks like a full version: a single wrong byte must not turn a delta into one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

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
from tests.unit.stream.streams import Stream, Tensors, contents_of

FULL = "model.safetensors"
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


def of_another_name(full: Tensors) -> Tensors:
    return {("layers.3.weighs" if name == "layers.3.weight" else name): full[name] for name in full}


def of_another_shape(full: Tensors) -> Tensors:
    return full | {"layers.3.weight": full["layers.3.weight"][:-1]}


def without_one(full: Tensors) -> Tensors:
    return {name: full[name] for name in full if name != "layers.3.weight"}


def of_another_dtype(full: Tensors) -> Tensors:
    return full | {"layers.3.weight": full["layers.3.weight"].view(np.int8)}


@pytest.mark.parametrize(
    "damage", [of_another_name, of_another_shape, of_another_dtype, without_one]
)
@pytest.mark.parametrize("encodings", [("xor", "gap"), ("full", "xor"), ("xor", "full")])
def test_a_full_version_of_other_tensors_is_refused_by_name(
    tmp_path: Path, encodings: tuple[str, ...], damage: Callable[[Tensors], Tensors]
) -> None:
    stream = Stream(tmp_path, *encodings)
    pull(stream.local, stream.source, 2, base_dir=stream.base)
    stream.add("full")
    stream.add("xor")
    save(directory_of(stream.source, 3) / FULL, damage(stream.tensors[3]))
    with pytest.raises(VersionMalformed, match=r"weight_v000003: tensor 'layers\.3\.") as caught:
        pull(stream.local, stream.source, 3, base_dir=stream.base)
    assert caught.value.local_version == 2
    assert contents_of(stream.local) == stream.at(2)
    for base in (None, stream.base):
        if base is None and "full" not in encodings:
            continue
        seen = survey_source(stream.source, base_dir=base).versions
        assert [one.kind for one in seen] == [*encodings, None, "xor"]
        assert "tensor 'layers.3." in str(seen[2].trouble)
        faults = {one.where: one.kind for one in verify_source(stream.source, base_dir=base).faults}
        assert faults["weight_v000003"] == "VersionMalformed"
        assert faults["weight_v000004"] == "VersionMissing"
    # Without a full version before it nobody knows shapes, only which tensors there are.
    if "full" in encodings or damage in (of_another_name, without_one):
        with pytest.raises(VersionMalformed, match=r"tensor 'layers\.3\.weigh"):
            prune(stream.source, keep=1)
        assert published_versions(stream.source) == (1, 2, 3, 4)
    save(directory_of(stream.source, 3) / FULL, stream.tensors[3])
    pull(stream.local, stream.source, 4, base_dir=stream.base)
    assert contents_of(stream.local) == stream.at(4)
    assert verify_source(stream.source, base_dir=stream.base).faults == ()
    assert prune(stream.source, keep=1).kept == (3, 4)


def test_a_full_version_may_write_out_what_its_base_ties(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "full")
    full = stream.tensors[1] | {"lm_head.weight": stream.tensors[1]["layers.0.weight"].copy()}
    save(directory_of(stream.source, 1) / FULL, full)
    pull(stream.local, stream.source, 1, base_dir=stream.base)
    assert contents_of(stream.local).keys() == full.keys()
    assert verify_source(stream.source, base_dir=stream.base).faults == ()


def test_a_full_version_after_a_chain_that_is_broken_is_judged_by_itself(tmp_path: Path) -> None:
    """It may be there because of that; what leads nowhere goes."""
    stream = Stream(tmp_path, "xor", "xor", "full")
    shutil.rmtree(directory_of(stream.source, 1))
    assert prune(stream.source, keep=1).removed == (2,)


def save(path: Path, tensors: Tensors) -> None:
    path.write_bytes(safetensors.numpy.save(dict(tensors)))
