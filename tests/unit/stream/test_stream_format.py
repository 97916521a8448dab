"""The vectors of docs/reference/stream-format.md, which other implementations check against."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hotswap.stream.encodings import Encoding, apply
from hotswap.stream.gap import decode_gap
from hotswap.stream.gap_layout import Sparse, sparse_blob
from tests.markdown_blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "reference" / "stream-format.md"
(_BLOCK,) = (block for block in blocks_of(PAGE) if block.language == "json")
VECTORS: list[dict[str, Any]] = json.loads(_BLOCK.code)
_ZEROS = {300: bytes(299) + b"\xa5", 40: b"\x01" * 40}


def old_and_new(vector: dict[str, Any]) -> tuple[bytes, bytes]:
    if "zeros" in vector:
        return bytes(vector["zeros"]), _ZEROS[vector["zeros"]]
    return bytes.fromhex(vector["old"]), bytes.fromhex(vector["new"])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_vector_turns_old_into_new(vector: dict[str, Any]) -> None:
    old, new = old_and_new(vector)
    blob = bytes.fromhex(vector["blob"])
    tensor = np.frombuffer(bytearray(old), np.uint8)
    apply(Encoding.GAP, memoryview(blob), tensor, where=vector["name"])
    assert tensor.tobytes() == new
    assert blob[5] == vector["width"]
    change = decode_gap(memoryview(blob), len(old), where="here")
    if isinstance(change, Sparse) and "frames" not in vector["name"]:
        elements = len(old) // vector["width"]
        assert sparse_blob(change.symbols, change.planes, elements=elements) == blob


def test_the_vectors_have_every_kind_and_width() -> None:
    heads = [bytes.fromhex(vector["blob"])[3:8] for vector in VECTORS]
    assert {head[0] for head in heads} == {1}
    assert {head[1] for head in heads} == {0, 1}
    assert {head[2] for head in heads} == {1, 2, 4, 8}
    assert {head[3] for head in heads} == {0, 1, 2}
