"""The demo's account of requests and its verdict: it must be able to say no."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from contrib.demo.client import Client
from contrib.demo.failed import DemoFailed
from contrib.demo.folder import built_whole
from contrib.demo.proof import (
    PROMPTS,
    Evidence,
    against_fresh,
    against_transformers,
    checkpoints_differ,
    nothing_lost,
)
from contrib.demo.streams import Load, Span, Stream
from contrib.demo.train import train


def evidence(*, weight: str = "aa", token: int = 1) -> Evidence:
    return Evidence(
        checksums={"embed": weight, "head": weight, "rotary": "same"},
        tokens={prompt: [token, 2] for prompt in PROMPTS},
    )


def meta(*, reason: str | None, spans: list[tuple[str | None, int, int]]) -> dict[str, Any]:
    return {
        "finish_reason": None if reason is None else {"type": reason},
        "completion_tokens": spans[-1][2] if spans else 0,
        "weight_versions": [
            {"version": version, "start": start, "end": end} for version, start, end in spans
        ],
    }


def test_equal_evidence_holds() -> None:
    checks = against_fresh("B", [evidence(), evidence()], evidence())
    checks.append(against_transformers("B", [evidence()], evidence().tokens))
    assert [check.holds for check in checks] == [True, True, True]


def test_one_swap_with_one_other_checksum_fails_and_is_named() -> None:
    sums, tokens = against_fresh("B", [evidence(), evidence(weight="bb")], evidence())
    assert not sums.holds
    assert sums.detail == "not so for 'embed' and 1 more"
    assert tokens.holds


def test_a_tensor_that_the_fresh_server_lacks_fails() -> None:
    fresh = Evidence(checksums={"embed": "aa", "head": "aa"}, tokens=evidence().tokens)
    assert not against_fresh("B", [evidence()], fresh)[0].holds


def test_other_tokens_than_transformers_fail() -> None:
    assert not against_transformers("A", [evidence(token=7)], evidence().tokens).holds


def test_checkpoints_that_are_alike_prove_nothing() -> None:
    assert not checkpoints_differ(evidence(), evidence()).holds
    assert not checkpoints_differ(evidence(), evidence(weight="bb")).holds
    assert checkpoints_differ(evidence(), evidence(weight="bb", token=3)).holds


def test_a_stream_accounts_for_spans_across_requests() -> None:
    stream = Stream(0)
    stream.end(meta(reason="length", spans=[(None, 0, 5), ("B", 5, 8)]))
    stream.end(meta(reason="stop", spans=[("B", 0, 4)]))
    assert stream.spans == [Span("null", 5), Span("B", 7)]
    assert (stream.done, stream.crossed, stream.lost) == (2, 1, [])


def token(count: int) -> dict[str, Any]:
    return {"text": "", "meta_info": {"completion_tokens": count}}


async def test_gaps_are_between_tokens_of_one_request() -> None:
    async with Client("http://127.0.0.1:9") as client:
        load = Load(client, 2)
    first, second = load.streams
    assert isnan(load.median_gap_ms)
    for stream, tokens in ((first, 3), (second, 2), (first, 1)):
        stream.begin()
        for count in range(1, tokens + 1):
            stream.token_event(token(count), count - 1)
    assert [len(stream.gaps_s) for stream in load.streams] == [2, 1]
    first.gaps_s[:] = [0.01, 0.02]
    second.gaps_s[:] = [0.3]
    assert (load.median_gap_ms, load.longest_gap_ms) == (20.0, 300.0)
    load.forget_gaps()
    assert isnan(load.longest_gap_ms)


@pytest.mark.parametrize("reason", [None, "error"])
def test_a_request_without_a_proper_end_is_lost(reason: str | None) -> None:
    stream = Stream(0)
    stream.end(meta(reason=reason, spans=[("A", 0, 1)]))
    assert stream.done == 0
    assert stream.lost == [f"ended with finish_reason {reason}"]


async def test_lost_and_aborted_requests_fail_the_check() -> None:
    async with Client("http://127.0.0.1:9") as client:
        load = Load(client, 2)
    assert not nothing_lost(load).holds
    load.streams[0].end(meta(reason="stop", spans=[("A", 0, 1)]))
    assert nothing_lost(load).holds
    load.streams[1].end(meta(reason="abort", spans=[("A", 0, 1)]))
    assert not nothing_lost(load).holds


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    wanted = tmp_path / "made" / "A"
    with pytest.raises(FileNotFoundError), built_whole(wanted) as draft:
        (draft / "not_there" / "config.json").write_text("{}")
    assert list(wanted.parent.iterdir()) == []
    with built_whole(wanted) as draft:
        (draft / "config.json").write_text("{}")
        assert not wanted.exists()
    assert [path.name for path in wanted.parent.iterdir()] == ["A"]
    with built_whole(wanted) as draft:
        (draft / "model.safetensors").write_bytes(b"")
    assert [path.name for path in wanted.iterdir()] == ["model.safetensors"]


async def test_a_server_that_is_not_there_is_one_sentence() -> None:
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(DemoFailed, match=r"POST http://127\.0\.0\.1:9/pause_generation"):
            await client.pause("retract")


def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    source = tmp_path / "A"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(DemoFailed, match="transformers cannot load the model in") as failure:
        train(source, tmp_path / "B")
    assert "\n" not in str(failure.value)
