"""Split names of fused parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotswap.weights.mapping import FusedPart, FusedRule, SplitName, split_names

QKV = FusedRule(
    fused="qkv_proj",
    parts=(FusedPart("q_proj", 8), FusedPart("k_proj", 2), FusedPart("v_proj", 2)),
)


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_parts_replace_the_component_and_follow_each_other(leaf: str) -> None:
    assert split_names(f"model.layers.0.self_attn.qkv_proj.{leaf}", 12, [QKV]) == (
        SplitName(f"model.layers.0.self_attn.q_proj.{leaf}", 0, 8),
        SplitName(f"model.layers.0.self_attn.k_proj.{leaf}", 8, 10),
        SplitName(f"model.layers.0.self_attn.v_proj.{leaf}", 10, 12),
    )


def test_the_parameter_itself_may_be_the_component() -> None:
    assert [part.name for part in split_names("experts.qkv_proj", 12, [QKV])] == [
        "experts.q_proj",
        "experts.k_proj",
        "experts.v_proj",
    ]


@pytest.mark.parametrize(
    "name", ["qkv_proj.lora.down.weight", "my_qkv_proj.weight", "o_proj.weight"]
)
def test_other_names_are_left_alone(name: str) -> None:
    assert split_names(name, 12, [QKV]) == ()


def test_the_rule_whose_rows_add_up_is_taken() -> None:
    wide = FusedRule(fused="qkv_proj", parts=(FusedPart("wide_q", 16), FusedPart("wide_kv", 4)))
    assert [part.name for part in split_names("qkv_proj.bias", 20, [QKV, wide])] == [
        "wide_q.bias",
        "wide_kv.bias",
    ]


@pytest.mark.parametrize("rows", [11, 13, None])
def test_rows_that_no_rule_adds_up_to_are_an_error(rows: int | None) -> None:
    with pytest.raises(ValueError, match=r"a\.qkv_proj\.weight has .* rows.*\[12\]"):
        split_names("a.qkv_proj.weight", rows, [QKV])


@pytest.mark.parametrize(
    ("fused", "parts"),
    [
        ("", (FusedPart("q", 1),)),
        ("a.b", (FusedPart("q", 1),)),
        ("a", ()),
        ("a", (FusedPart("", 1),)),
        ("a", (FusedPart("q.x", 1),)),
        ("a", (FusedPart("q", 0),)),
        ("a", (FusedPart("q", 1), FusedPart("q", 2))),
        ("a", (FusedPart("a", 1),)),
    ],
)
def test_rules_that_mean_nothing_are_refused(fused: str, parts: tuple[FusedPart, ...]) -> None:
    with pytest.raises(ValueError, match="FusedRule"):
        FusedRule(fused=fused, parts=parts)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_parts_tile_the_fused_rows(rows: list[int]) -> None:
    rule = FusedRule(
        fused="fused", parts=tuple(FusedPart(f"part{at}", n) for at, n in enumerate(rows))
    )
    parts = split_names("x.fused.weight", rule.rows, [rule])
    assert [part.stop - part.start for part in parts] == rows
    assert [part.start for part in parts] == [0, *[part.stop for part in parts][:-1]]
    assert parts[-1].stop == rule.rows
