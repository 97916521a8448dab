"""Many chunks, one update: staged as they come, live together, and nothing gets in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import torch

from hotswap.attempt import Phase, UpdateNews
from hotswap.controller import Controller
from hotswap.errors import Busy, IllegalCommand, UpdateFailed, UpdateRejected
from hotswap.state import State
from hotswap.testing.tiny_modules import Q_ROWS, VOCAB, TinyModel, tiny_state, tiny_target
from hotswap.types import Manifest, PauseMode, Scope, TensorSpec
from hotswap.update_session import ChunkReport, Labels
from hotswap.wire import FLATTENED, Received, decode, flattened_bucket, payload_bytes
from tests.unit.wire.test_push import Server

STATE = tiny_state(4)
NAMES = list(STATE)
BAD = {"embed.weight": torch.zeros(3)}
NEVER = 3600.0


class Trainer(Server):
    """A server, and a client that pushes to it in sessions."""

    def __init__(self, model: TinyModel, *, timeout_s: float = NEVER, **engine: Any) -> None:
        super().__init__(model, **engine)
        self.controller = Controller(self.engine, strategies={}, session_timeout_s=timeout_s)
        self.sessions = self.controller.sessions

    async def send(
        self, tensors: Mapping[str, torch.Tensor], update_id: str | None = "u", **said: Any
    ) -> ChunkReport:
        session = self.sessions.for_chunk(update_id)
        assert session is not None
        with flattened_bucket(list(tensors.items())) as text:
            received = Received(decode(payload_bytes(text), load_format=FLATTENED))
            try:
                return await self.sessions.stage(session, received, Labels(**said))
            finally:
                received.release()

    async def send_all(self, update_id: str | None = "u") -> None:
        for name in NAMES:
            await self.send({name: STATE[name]}, update_id)


def state_of(trainer: Trainer) -> State:
    return trainer.controller.machine.state


def a_trainer(**options: Any) -> Trainer:
    return Trainer(TinyModel(), **options)


def live_after_a_full_push(trainer: Trainer) -> dict[str, str]:
    model = TinyModel()
    model.get_buffer("inv_freq").copy_(trainer.model.get_buffer("inv_freq"))
    target = tiny_target(model)
    with torch.no_grad():
        for name, tensor in STATE.items():
            plan = target.plan(push_manifest(name, tensor), Scope.PARTIAL)
            target.write(plan, [(name, tensor)])
    target.finish()
    return target.checksums()


def push_manifest(name: str, tensor: torch.Tensor) -> Manifest:
    return Manifest.of([TensorSpec(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))])


async def test_chunks_become_live_together() -> None:
    trainer = a_trainer()
    before, stamp = trainer.sums(), trainer.controller.stamp
    trainer.sessions.begin(update_id="u")
    await trainer.send_all()
    assert (trainer.sums(), trainer.controller.stamp) == (before, stamp)
    assert trainer.controller.machine.state is State.SERVING
    report = await trainer.sessions.commit("u", Labels(version="7", token_step=3))
    assert report is not None
    assert (report.missing, report.stamp.version, report.stamp.token_step) == ((), "7", 3)
    assert (report.stamp.epoch, report.stamp.update_count) == (stamp.epoch + 1, 1)
    assert trainer.sums() == live_after_a_full_push(trainer)
    assert trainer.sessions.open is None
    assert not trainer.controller.coverage.begun


async def test_a_chunk_says_what_it_brought() -> None:
    trainer = a_trainer()
    session = trainer.sessions.begin(update_id="u")
    first = await trainer.send({"mean": STATE["mean"], "steps": STATE["steps"]}, version="8")
    assert (first.tensors, first.repeated) == (2, 0)
    assert first.bytes == STATE["mean"].nbytes + STATE["steps"].nbytes
    assert len(first.missing) == len(NAMES) - 2
    shown = session.shown()
    assert (shown["updates"], shown["tensors"], shown["bytes"]) == (1, 2, first.bytes)
    assert (shown["version"], shown["scope"], shown["refused"]) == ("8", "full", None)
    assert repr(session) == "<UpdateSession u 1 chunks, 2 tensors>"
    assert repr(trainer.sessions) == f"<UpdateSessions {session!r}>"
    await trainer.sessions.abort("u")
    assert repr(trainer.sessions) == "<UpdateSessions none open>"


async def test_a_chunk_that_comes_twice_counts_once_and_the_last_value_is_meant() -> None:
    trainer = a_trainer()
    trainer.sessions.begin(update_id="u")
    await trainer.send({"mean": torch.ones(4), "steps": STATE["steps"]})
    await trainer.send_all()
    again = await trainer.send({"mean": STATE["mean"]})
    assert again.repeated == 1
    await trainer.sessions.commit("u")
    assert trainer.sums() == live_after_a_full_push(trainer)


async def test_a_commit_that_is_sent_twice_has_one_answer() -> None:
    trainer = a_trainer()
    trainer.sessions.begin(update_id="u")
    await trainer.send_all()
    reports: list[Any] = []

    async def commit() -> None:
        reports.append(await trainer.sessions.commit("u"))

    async with anyio.create_task_group() as group:
        group.start_soon(commit)
        group.start_soon(commit)
    await commit()
    assert reports[0] is reports[1] is reports[2]
    assert trainer.controller.stamp.update_count == 1
    with pytest.raises(IllegalCommand, match="'u' was committed"):
        await trainer.send({"mean": STATE["mean"]})
    with pytest.raises(IllegalCommand, match="nothing to abort"):
        await trainer.sessions.abort("u")
    with pytest.raises(IllegalCommand, match="another id"):
        trainer.sessions.begin(update_id="u")


async def test_a_session_that_lacks_something_says_what_and_goes_on() -> None:
    trainer = a_trainer()
    trainer.sessions.begin(update_id="u")
    for name in NAMES[1:]:
        await trainer.send({name: STATE[name]})
    before = trainer.sums()
    with pytest.raises(UpdateRejected, match=f"1 missing: {NAMES[0]}"):
        await trainer.sessions.commit("u")
    assert trainer.sums() == before
    await trainer.send({NAMES[0]: STATE[NAMES[0]]})
    await trainer.sessions.commit("u")
    assert trainer.sums() == live_after_a_full_push(trainer)


async def test_a_part_of_the_weights_is_one_update_too() -> None:
    trainer = a_trainer()
    before = trainer.model.layer.qkv_proj.weight.detach().clone()
    session = trainer.sessions.begin(scope=Scope.PARTIAL)
    q = torch.randn(Q_ROWS, 6)
    await trainer.send({"layer.q_proj.weight": q}, session.update_id)
    report = await trainer.sessions.commit(session.update_id)
    assert report is not None
    assert report.tensors_applied == 1
    assert torch.equal(trainer.model.layer.qkv_proj.weight[:Q_ROWS], q)
    assert torch.equal(trainer.model.layer.qkv_proj.weight[Q_ROWS:], before[Q_ROWS:])
    assert not trainer.controller.coverage.begun, "no chunk of its own"


async def test_after_a_refused_chunk_only_what_is_whole_can_be_committed() -> None:
    trainer = a_trainer()
    trainer.sessions.begin(update_id="part", scope=Scope.PARTIAL)
    await trainer.send({"mean": STATE["mean"]}, "part")
    with pytest.raises(UpdateRejected, match="wrong shape"):
        await trainer.send(BAD, "part")
    before = trainer.sums()
    with pytest.raises(UpdateRejected, match="was refused"):
        await trainer.sessions.commit("part")
    assert await trainer.sessions.abort() == "part"
    assert trainer.sums() == before
    assert trainer.controller.machine.state is State.SERVING

    trainer.sessions.begin(update_id="u")
    with pytest.raises(UpdateRejected):
        await trainer.send(BAD)
    await trainer.send_all()
    await trainer.sessions.commit("u")
    assert trainer.sums() == live_after_a_full_push(trainer)


async def test_nothing_else_changes_the_weights_meanwhile() -> None:
    trainer = a_trainer()
    trainer.sessions.begin(update_id="u")
    with pytest.raises(Busy, match="'u' is open, with 0 chunks"):
        await trainer.push(STATE)
    with pytest.raises(Busy, match="'u' is open"):
        await trainer.controller.reset()
    with pytest.raises(Busy, match="'u' is open"):
        trainer.sessions.begin(update_id="v")
    assert trainer.sessions.begin(update_id="u") is trainer.sessions.open
    assert trainer.controller.stamp.update_count == 0
    assert await trainer.sessions.abort("u") == "u"
    assert await trainer.sessions.abort("u") is None
    assert await trainer.sessions.abort() is None
    await trainer.push(STATE)
    with pytest.raises(IllegalCommand, match="'u' was aborted"):
        await trainer.send({"mean": STATE["mean"]})


async def test_a_begin_that_is_sent_twice_says_the_same_twice() -> None:
    trainer = a_trainer()
    begun = trainer.sessions.begin(update_id="u", scope=Scope.PARTIAL)
    assert trainer.sessions.begin(update_id="u", scope=Scope.PARTIAL) is begun
    with pytest.raises(IllegalCommand, match="open with scope partial, and is begun again with f"):
        trainer.sessions.begin(update_id="u")


async def test_an_abort_does_not_wait_for_a_chunk_that_never_ends() -> None:
    trainer = a_trainer()
    session = trainer.sessions.begin(update_id="u")
    await trainer.send({"mean": STATE["mean"]})
    async with session.turns.turn():  # as while a body of a chunk is still coming
        assert await trainer.sessions.abort() == "u"
    assert session.empty
    trainer.sessions.begin(update_id="v")
    with pytest.raises(IllegalCommand, match="'u' was aborted"):
        await trainer.sessions.commit("u")


async def test_nobody_waits_for_ever_for_a_chunk_that_never_ends() -> None:
    trainer = Trainer(TinyModel())
    controller = Controller(trainer.engine, strategies={}, queue_wait_s=0.0)
    trainer.controller, trainer.sessions = controller, controller.sessions
    session = trainer.sessions.begin(update_id="u")
    begun, over = anyio.Event(), anyio.Event()

    async def never_ends() -> None:
        async with session.turns.turn():
            begun.set()
            await over.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(never_ends)
        await begun.wait()
        with pytest.raises(Busy, match="another one is still being worked on"):
            await trainer.send({"mean": STATE["mean"]})
        with pytest.raises(Busy, match="the commit of the update u waited 0 s"):
            await trainer.sessions.commit("u")
        over.set()
    await trainer.send_all()
    await trainer.sessions.commit("u")


async def test_an_abort_while_a_commit_runs_tells_how_that_ended() -> None:
    trainer = a_trainer()
    trainer.sessions.begin(update_id="u")
    await trainer.send_all()
    told: list[str] = []

    def abort_in_the_middle(news: UpdateNews) -> None:
        if news.outcome is None and news.phase is Phase.COMMITTING:
            group.start_soon(abort)

    async def abort() -> None:
        with pytest.raises(IllegalCommand, match="was committed; there is nothing to abort"):
            await trainer.sessions.abort()
        told.append("committed")

    trainer.controller.observe_updates(abort_in_the_middle)
    async with anyio.create_task_group() as group:
        await trainer.sessions.commit("u")
    assert told == ["committed"]
    assert trainer.sums() == live_after_a_full_push(trainer)


async def test_no_session_begins_while_an_update_runs() -> None:
    trainer = a_trainer()
    refusals: list[str] = []

    def begin(news: UpdateNews) -> None:
        if news.outcome is None and news.phase is not Phase.WAITING:
            with pytest.raises(Busy, match="an update runs") as refused:
                trainer.sessions.begin()
            refusals.append(str(refused.value))

    trainer.controller.observe_updates(begin)
    await trainer.push(STATE)
    assert len(refusals) == 3, "staging, queued, committing"
    trainer.sessions.begin()


async def test_an_unnamed_session_takes_chunks_without_an_id() -> None:
    trainer = a_trainer()
    session = trainer.sessions.begin(unnamed=True, scope=Scope.PARTIAL)
    await trainer.push({"mean": STATE["mean"]})  # an update of its own, as it has no chunk yet
    trainer.sessions.note_update()
    session.note_empty(Labels())
    await trainer.send_all(None)
    with pytest.raises(Busy):
        await trainer.push({"mean": STATE["mean"]})
    session.say(Labels(version="9"))
    report = await trainer.sessions.commit(None, Labels(pause_mode=PauseMode.RETRACT))
    assert report is not None
    assert (report.stamp.version, report.missing, session.chunks) == ("9", (), 2 + len(NAMES))
    assert trainer.sessions.for_chunk(None) is None
    trainer.sessions.note_update()


async def test_an_empty_session() -> None:
    trainer = a_trainer()
    trainer.sessions.begin(unnamed=True)
    assert await trainer.sessions.commit(None) is None
    trainer.sessions.begin(update_id="u")
    with pytest.raises(UpdateRejected, match="no tensors"):
        await trainer.sessions.commit("u")
    with pytest.raises(IllegalCommand, match=r"no update 'v' is open \(open: 'u'\)"):
        await trainer.sessions.commit("v")
    assert trainer.controller.stamp.update_count == 0


async def test_an_abandoned_session_is_over() -> None:
    trainer = a_trainer(timeout_s=0.0)
    session = trainer.sessions.begin(update_id="u")
    async with session.turns.turn():  # as while a chunk is staged
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert trainer.sessions.open is session
        assert session.idle_s == 0.0
    while trainer.sessions.open is not None:
        await anyio.lowlevel.checkpoint()
    with pytest.raises(IllegalCommand, match="'u' timed out"):
        trainer.sessions.for_chunk("u")
    await trainer.push(STATE)
    assert trainer.controller.stamp.update_count == 1


async def test_one_that_something_came_for_is_not() -> None:
    trainer = a_trainer()
    session = trainer.sessions.begin(update_id="u")
    trainer.sessions._expire()
    assert trainer.sessions.open is session
    trainer.controller.sessions.close()
    trainer.sessions._expire()
    trainer.controller.sessions.close()
    assert trainer.sessions.shown() is None


async def test_a_commit_that_fails_may_be_sent_again() -> None:
    failing = {"now": True}
    trainer = a_trainer(fails=lambda at: failing["now"] and at is not None)
    trainer.sessions.begin(update_id="u")
    await trainer.send_all()
    with pytest.raises(UpdateFailed):
        await trainer.sessions.commit("u")
    assert state_of(trainer) is State.INVALID
    failing["now"] = False
    await trainer.sessions.commit("u")
    assert state_of(trainer) is State.SERVING
    assert trainer.sums() == live_after_a_full_push(trainer)


async def test_aliases_that_contradict_each_other_in_two_chunks_change_nothing() -> None:
    trainer = Trainer(TinyModel(tied=True))
    before = trainer.sums()
    trainer.sessions.begin(update_id="u", scope=Scope.PARTIAL)
    await trainer.send({"embed.weight": torch.zeros(VOCAB, 6)})
    await trainer.send({"head.weight": torch.ones(VOCAB, 6)})
    with pytest.raises(UpdateRejected, match="tied"):
        await trainer.sessions.commit("u")
    assert trainer.sums() == before
    await trainer.send({"embed.weight": torch.ones(VOCAB, 6)})
    await trainer.sessions.commit("u")
    assert torch.equal(trainer.model.embed.weight, torch.ones(VOCAB, 6))
