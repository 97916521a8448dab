"""Text in the place of a member is the member, or a clear error, wherever callers pass one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotswap.controller import Controller
from hotswap.embed import HotSwap, HotSwapThread
from hotswap.engine.gate import PauseTicket
from hotswap.errors import UpdateRejected
from hotswap.http import Kind, KindedRoute
from hotswap.http.routes import Level, level_of
from hotswap.testing.fakes import FakeEngine, fake_weights
from hotswap.testing.module_engine import ModuleEngine
from hotswap.transaction import Transaction
from hotswap.types import LoadMode, Manifest, PauseMode, Scope, TensorSpec, Update, member
from hotswap.update_session import UpdateSession
from hotswap.weights.target import WeightTarget
from hotswap.wire.strategy import push_update
from tests.unit.embed.modules import checkpoint, filled


def text(word: object) -> Any:
    """As a caller without a type checker passes it."""
    return word


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("mode", list(LoadMode))
@pytest.mark.parametrize("pause_mode", [None, *PauseMode])
def test_an_update_made_of_text_is_the_one_made_of_members(
    scope: Scope, mode: LoadMode, pause_mode: PauseMode | None
) -> None:
    spelled = Update(
        source="x",
        scope=text(str(scope)),
        mode=text(str(mode)),
        pause_mode=None if pause_mode is None else text(str(pause_mode)),
    )
    assert spelled == Update(source="x", scope=scope, mode=mode, pause_mode=pause_mode)
    assert spelled.scope is scope
    assert spelled.mode is mode
    assert spelled.pause_mode is pause_mode


@pytest.mark.parametrize("field", ["scope", "mode", "pause_mode"])
@pytest.mark.parametrize("word", ["", "FULL", "full ", "bogus", 3, ["full"], math.nan])
def test_an_update_of_an_unknown_word_is_an_error_that_lists_the_words(
    field: str, word: object
) -> None:
    fields: dict[str, Any] = {field: word}
    with pytest.raises(ValueError, match=rf"^{field} is .*, wanted one of '\w+', '\w+'"):
        Update(source="x", **fields)


def test_an_update_takes_a_path_as_its_source_and_nothing_that_is_no_text(tmp_path: Path) -> None:
    assert Update(source=text(tmp_path)).source == str(tmp_path)
    for wrong, kind in ((None, "NoneType"), (3, "int"), (b"/x", "bytes")):
        with pytest.raises(ValueError, match=f"source is a {kind}, wanted a text"):
            Update(source=text(wrong))
    with pytest.raises(ValueError, match="options is a list, wanted a mapping"):
        Update(source="x", options=text([1]))


def test_a_member_is_itself() -> None:
    assert member(Scope, Scope.FULL, what="scope") is Scope.FULL
    assert member(Scope, "partial", what="scope") is Scope.PARTIAL
    with pytest.raises(ValueError, match=r"^it is 'x', wanted one of 'full', 'partial'$"):
        member(Scope, "x", what="it")


def values(module: nn.Module) -> list[float]:
    """The one number of each weight."""
    return [weight.detach().mean().item() for weight in module.parameters()]


async def test_a_full_update_in_text_does_not_take_half_a_checkpoint(tmp_path: Path) -> None:
    half = checkpoint(tmp_path / "half", 2.0, names=["0.weight"])
    module = filled(1.0)
    async with HotSwap(module) as swap:
        for scope in (Scope.FULL, "full"):
            with pytest.raises(UpdateRejected, match=r"1\.weight"):
                await swap.update(half, scope=scope)
        with pytest.raises(ValueError, match="scope is 'Full'"):
            await swap.update(half, scope="Full")
        with pytest.raises(ValueError, match="mode is 'fast'"):
            await swap.update(half, mode="fast")
        assert values(module) == [1.0, 1.0]
        await swap.update(Path(half), scope="partial", mode="direct")
        assert values(module) == [2.0, 1.0]


def test_a_thread_takes_text_too(tmp_path: Path) -> None:
    b = checkpoint(tmp_path / "b", 2.0)
    with HotSwapThread(HotSwap(filled(1.0))) as swap:
        assert swap.pause("in_place").mode is PauseMode.IN_PLACE
        with pytest.raises(ValueError, match="pause mode is 'hard'"):
            swap.pause("hard")
        assert swap.update(Path(b), mode="direct").load_mode is LoadMode.DIRECT


def target() -> WeightTarget:
    return WeightTarget(nn.Linear(2, 2))


PART = Manifest.of([TensorSpec(name="bias", dtype=torch.float32, shape=(2,))])


def test_a_target_plans_a_scope_in_text() -> None:
    assert target().plan(PART, text("partial")).missing == ("weight",)
    with pytest.raises(UpdateRejected, match="1 missing: weight"):
        target().plan(PART, text("full"))
    with pytest.raises(ValueError, match="scope is 'all'"):
        target().plan(PART, text("all"))


async def test_a_transaction_takes_a_mode_in_text() -> None:
    engine = ModuleEngine(target())
    plan = engine.plan(PART, Scope.PARTIAL)
    async with Transaction(engine, plan, mode=text("staged")) as transaction:
        await transaction.write([("bias", torch.zeros(2))])
        assert engine.written == []
        assert "bias" in transaction.staged
    with pytest.raises(ValueError, match="mode is 'fast'"):
        Transaction(engine, plan, mode=text("fast"))


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_a_controller_pauses_with_a_mode_in_text(mode: PauseMode) -> None:
    engine = FakeEngine(fake_weights(1.0))
    async with Controller(engine, strategies={}) as controller:
        report = await controller.pause(text(str(mode)))
        assert report.mode is mode
        assert controller.machine.facts.gate is mode
        with pytest.raises(ValueError, match="pause mode is 'hard'"):
            await controller.pause(text("hard"))
    assert engine.modes == [mode]


def test_a_session_and_a_push_take_a_scope_in_text() -> None:
    engine = FakeEngine(fake_weights(1.0))
    session = UpdateSession(engine, update_id="a", scope=text("partial"))
    assert session.scope is Scope.PARTIAL
    with pytest.raises(ValueError, match="scope is 'some'"):
        UpdateSession(engine, update_id="a", scope=text("some"))
    pushed: Any = object()
    assert push_update(pushed, source="a push", scope=text("partial")).chunk
    assert not push_update(pushed, source="a push", scope=text("full")).chunk


def test_an_engine_s_pause_takes_text() -> None:
    assert PauseTicket(text("wait")).mode is PauseMode.WAIT
    with pytest.raises(ValueError, match="pause mode is 'hard'"):
        PauseTicket(text("hard"))


def test_a_route_s_kind_and_level_in_text_are_no_less_strict() -> None:
    async def endpoint(_request: object) -> None: ...

    def route(**fields: Any) -> KindedRoute:
        return KindedRoute("/x", endpoint, methods=["GET"], **fields)

    assert route(kind="open", level="admin_force").kind is Kind.OPEN
    assert level_of(route(kind="open", level="admin_force")) is Level.ADMIN_FORCE
    with pytest.raises(ValueError, match="kind is 'any', wanted one of 'update'"):
        route(kind="any")
    with pytest.raises(ValueError, match="level is 'root', wanted one of 'normal'"):
        route(kind="open", level="root")
