"""What ``hotswap update`` says of one that is done."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hotswap.cli.update import line_of
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
