"""What ``hotswap update`` says of one that is done."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hotswap.cli.outcome import line_of
from hotswap.client import UpdateResult

DONE = UpdateResult(
    source="/w", weight_version="7", tensors=21, bytes=2_000_000, staged_ms=3.0, paused_ms=1.25
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "version 7 is live: 21 tensors, 2.0 MB, staged 3.0 ms, paused 1.2 ms"),
        (
            {"mode": "sparse", "elements_moved": 90, "bytes": 720},
            "version 7 is live: 21 tensors, 0.0 MB, 90 elements changed, staged 3.0 ms, "
            "paused 1.2 ms",
        ),
        (
            {"confirmed_by": "state"},
            "version 7 is live; the reply was lost, so its costs are not known",
        ),
    ],
)
def test_the_line(changed: dict[str, Any], expected: str) -> None:
    assert line_of(dataclasses.replace(DONE, **changed)) == expected


COSTS = "21 tensors, 2.0 MB, staged 3.0 ms, paused 1.2 ms"


def test_a_label_that_was_kept_is_not_the_news() -> None:
    assert line_of(DONE, labelled=False) == f"new weights are live, still labelled 7: {COSTS}"
    nameless = dataclasses.replace(DONE, weight_version=None)
    assert line_of(nameless, labelled=False) == f"new weights are live, without a label: {COSTS}"
    assert line_of(nameless) == f"version (no name) is live: {COSTS}"


def test_what_is_not_live_yet_is_loaded() -> None:
    assert line_of(DONE, rest="why") == f"version 7 is loaded: {COSTS}; why"
    loaded = line_of(DONE, labelled=False, rest="why")
    assert loaded == f"new weights are loaded, still labelled 7: {COSTS}; why"
