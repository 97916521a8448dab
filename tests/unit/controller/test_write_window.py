"""Who reads live weights sees one set of them: a read waits while they are written."""

import anyio
import pytest

from hotswap.errors import Busy, UpdateFailed
from hotswap.testing.rig import make_rig, settle, update_from
from hotswap.types import LoadMode
from hotswap.write_window import WriteWindow

OPEN = "<WriteWindow open waiting=0>"
CLOSED = "<WriteWindow closed waiting=0>"


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("open", CLOSED),
        ("pause", CLOSED),
        ("write", OPEN),
        ("commit", OPEN),
        ("flush", CLOSED),
        ("resume", CLOSED),
    ],
)
@pytest.mark.parametrize("mode", LoadMode)
async def test_it_is_open_from_the_first_write_to_the_commit(
    mode: LoadMode, step: str, shown: str
) -> None:
    rig = make_rig()
    async with rig.controller, anyio.create_task_group() as tasks:
        held = rig.steps.hold(step)
        tasks.start_soon(rig.controller.update, update_from("A", mode=mode))
        await held.arrived.wait()
        seen = repr(rig.controller.writes)
        held.release()
    assert seen == shown
    assert repr(rig.controller.writes) == CLOSED


async def test_it_is_open_while_weights_are_reset() -> None:
    rig = make_rig()
    async with rig.controller, anyio.create_task_group() as tasks:
        held = rig.steps.hold("reset")
        tasks.start_soon(rig.controller.reset)
        await held.arrived.wait()
        assert repr(rig.controller.writes) == OPEN
        held.release()


async def test_it_is_open_between_a_failed_commit_and_the_next_attempt() -> None:
    rig = make_rig()
    rig.steps.fail("write", RuntimeError("first"))
    rig.steps.fail("write", RuntimeError("second"), at=1)
    async with rig.controller, anyio.create_task_group() as tasks:

        async def update() -> None:
            with pytest.raises(UpdateFailed):
                await rig.controller.update(update_from("A"))

        await rig.controller.writes.closed()
        first = rig.steps.hold("write")
        second = rig.steps.hold("write")
        tasks.start_soon(update)
        for held in (first, second):
            await held.arrived.wait()
            assert repr(rig.controller.writes) == OPEN
            held.release()
    assert repr(rig.controller.writes) == CLOSED


async def test_reads_wait_for_the_last_of_those_who_write() -> None:
    window = WriteWindow(wait_s=60)
    order: list[str] = []

    async def read() -> None:
        await window.closed()
        order.append("read")

    async with anyio.create_task_group() as tasks:
        with window.open():
            with window.open():
                tasks.start_soon(read)
                await settle()
            await settle()
            assert window.waiting == 1
            order.append("written")
    assert order == ["written", "read"]


async def test_a_read_does_not_wait_for_ever() -> None:
    window = WriteWindow(wait_s=0)
    with window.open(), pytest.raises(Busy, match="half old, half new") as raised:
        await window.closed()
    assert raised.value.retryable
    await window.closed()
