"""Chunks that end half way, and how ended sessions are remembered."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from hotswap.errors import IllegalCommand
from hotswap.types import PauseMode
from hotswap.update_session import Labels
from hotswap.wire import FLATTENED, Received, decode, flattened_bucket, payload_bytes
from tests.unit.wire.test_sessions import STATE, a_trainer


@pytest.mark.parametrize("steps", range(5))
async def test_a_chunk_that_is_cancelled_leaves_nothing(steps: int) -> None:
    trainer = a_trainer()
    session = trainer.sessions.begin(update_id="u")
    async with anyio.create_task_group() as group:
        group.start_soon(trainer.send, {"mean": STATE["mean"]})
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert session.empty is (session.chunks == 0)
    assert session.turns.taken is False
    await trainer.send_all()
    await trainer.sessions.commit("u")


async def test_a_chunk_whose_session_has_ended_meanwhile_is_told_so() -> None:
    trainer = a_trainer()
    session = trainer.sessions.begin(update_id="u")
    trainer.sessions.close()
    with flattened_bucket([("mean", STATE["mean"])]) as text:
        received = Received(decode(payload_bytes(text), load_format=FLATTENED))
        with pytest.raises(IllegalCommand, match="dropped by a shutdown"):
            await trainer.sessions.stage(session, received, Labels())
    assert session.empty


def test_labels_add_up() -> None:
    first = Labels(version="1", flush_cache=True, pause_mode=PauseMode.RETRACT)
    then = first.then(Labels(token_step=4, pause_mode=PauseMode.IN_PLACE))
    assert then == Labels(version="1", token_step=4, flush_cache=True, pause_mode=PauseMode.RETRACT)
    assert Labels().then(Labels(version="2")) == Labels(version="2")


async def test_only_so_many_ends_are_remembered() -> None:
    trainer = a_trainer()
    for number in range(70):
        trainer.sessions.begin(update_id=str(number))
        await trainer.sessions.abort()
    assert trainer.sessions.begin(update_id="0").update_id == "0"
    await trainer.sessions.abort()
    with pytest.raises(IllegalCommand, match="aborted"):
        trainer.sessions.begin(update_id="69")
