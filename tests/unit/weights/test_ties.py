"""Tied names of a load that stages nothing."""

from __future__ import annotations

import pytest
import torch

from hotswap.errors import UpdateRejected
from hotswap.testing.module_engine import HeldPieces, HeldTensor
from hotswap.testing.tiny_modules import TinyModel, tiny_state, tiny_target
from hotswap.types import Manifest, Payload, Scope
from hotswap.weights.pieces import spec_of
from hotswap.weights.plan import TargetPlan
from hotswap.weights.ties import check_ties


def plan_of(payloads: dict[str, Payload], *, tied: bool) -> TargetPlan:
    manifest = Manifest.of(spec_of(name, payload) for name, payload in payloads.items())
    return tiny_target(TinyModel(tied=tied)).plan(manifest, Scope.FULL)


@pytest.mark.parametrize("kind", [HeldTensor, HeldPieces])
def test_they_are_compared_as_they_will_be_live(kind: type[HeldTensor]) -> None:
    payloads: dict[str, Payload] = dict(tiny_state(0))
    embed = tiny_state(0)["embed.weight"].bfloat16()
    payloads["embed.weight"] = embed
    payloads["head.weight"] = kind("head.weight", embed.float())
    check_ties(plan_of(payloads, tied=True), payloads)
    payloads["head.weight"] = kind("head.weight", embed.float().nextafter(torch.tensor(9.0)))
    with pytest.raises(UpdateRejected, match=r"embed\.weight and head\.weight are one tensor"):
        check_ties(plan_of(payloads, tied=True), payloads)


def test_an_untied_model_has_nothing_to_compare() -> None:
    payloads: dict[str, Payload] = dict(tiny_state(0))
    check_ties(plan_of(payloads, tied=False), payloads)


def test_a_source_that_cannot_be_read_is_heard() -> None:
    payloads: dict[str, Payload] = dict(tiny_state(0))
    head = tiny_state(0)["head.weight"]
    payloads["head.weight"] = HeldTensor("head.weight", head, error=OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        check_ties(plan_of(payloads, tied=True), payloads)
