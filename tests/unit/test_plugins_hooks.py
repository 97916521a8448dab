"""Hooks that run while the server does: bounded, and unable to hurt it."""

import logging

import anyio
import pytest

from hotswap.errors import InFlight, UpdateRejected
from hotswap.plugin_hooks import ChangedHook, PostWriteHook, PreReadHook
from hotswap.state import Change, Command, Facts


@pytest.mark.parametrize("kind", [PreReadHook, PostWriteHook])
async def test_an_async_hook_is_awaited_with_its_arguments(
    kind: type[PreReadHook] | type[PostWriteHook],
) -> None:
    seen: list[tuple[str, str | None]] = []

    async def call(place: str, version: str | None) -> None:
        seen.append((place, version))

    await kind(name="hotswap-x", call=call)("/v1", None)
    assert seen == [("/v1", None)]


@pytest.mark.parametrize("kind", [PreReadHook, PostWriteHook])
async def test_a_hook_that_hangs_is_cancelled(
    kind: type[PreReadHook] | type[PostWriteHook],
) -> None:
    cancelled = anyio.Event()

    async def call(place: str, version: str | None) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    with pytest.raises(UpdateRejected, match=r"hotswap-x: .* hook took longer than 0.01 s"):
        await kind(name="hotswap-x", call=call, timeout_s=0.01)("/v1", None)
    assert cancelled.is_set()


async def test_a_hook_that_fails_rejects_the_update() -> None:
    async def call(place: str, version: str | None) -> None:
        raise OSError("no such host")

    with pytest.raises(UpdateRejected, match="pre-read hook failed: OSError: no such host"):
        await PreReadHook(name="hotswap-x", call=call)("/v1", None)


async def test_a_timeout_of_the_hooks_own_is_its_own_failure() -> None:
    async def call(place: str, version: str | None) -> None:
        raise TimeoutError("the file server does not answer")

    with pytest.raises(UpdateRejected, match="TimeoutError: the file server"):
        await PreReadHook(name="hotswap-x", call=call)("/v1", None)


async def test_an_error_of_hotswap_passes_as_it_is() -> None:
    async def call(place: str, version: str | None) -> None:
        raise InFlight("not now")

    with pytest.raises(InFlight, match=r"^not now$"):
        await PreReadHook(name="hotswap-x", call=call)("/v1", None)


async def test_a_cancelled_update_cancels_the_hook_and_is_no_rejection() -> None:
    async def call(place: str, version: str | None) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await PreReadHook(name="hotswap-x", call=call)("/v1", None)
    assert scope.cancelled_caught


def test_a_failing_observer_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    change = Change(before=Facts(), after=Facts(), command=Command.PAUSE, outcome=None)
    seen: list[Change] = []

    def call(change: Change) -> None:
        seen.append(change)
        raise RuntimeError("observer broke")

    with caplog.at_level(logging.ERROR, "hotswap.plugin_hooks"):
        ChangedHook(name="hotswap-x", call=call)(change)
    assert seen == [change]
    [record] = caplog.records
    assert record.getMessage().startswith("hotswap-x: hotswap_changed failed on Change(")
    assert record.exc_info is not None
