"""Observers hear of every step of every update, and can disturb none."""

import asyncio
import logging

import pytest

from hotswap.attempt import Progress, UpdateNews
from hotswap.errors import ShuttingDown, UpdateFailed, UpdateRejected
from hotswap.testing.rig import make_rig, update_from
from hotswap.types import LoadMode


def steps(heard: list[UpdateNews]) -> list[str]:
    return [str(news.outcome or news.phase) for news in heard]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        (LoadMode.STAGED, ["waiting", "staging", "queued", "committing", "committed"]),
        (LoadMode.DIRECT, ["waiting", "queued", "committing", "committed"]),
    ],
)
async def test_a_whole_update_is_told_step_by_step(mode: LoadMode, wanted: list[str]) -> None:
    rig = make_rig()
    heard: list[UpdateNews] = []
    rig.controller.observe_updates(heard.append)

    async with rig.controller as controller:
        report = await controller.update(update_from("A", version="7", mode=mode))

    assert steps(heard) == wanted
    assert {news.number for news in heard} == {1}
    assert {news.update.version for news in heard} == {"7"}
    assert [news.report for news in heard] == [None] * (len(wanted) - 1) + [report]
    assert heard[-1].error is None


@pytest.mark.parametrize("mode", LoadMode)
async def test_what_is_held_is_told_once_it_is_known(mode: LoadMode) -> None:
    rig = make_rig()
    heard: list[UpdateNews] = []
    shown: list[dict[str, object]] = []

    def see(news: UpdateNews) -> None:
        heard.append(news)
        shown.extend(dict(update) for update in rig.controller.updates)

    rig.controller.observe_updates(see)
    async with rig.controller as controller:
        report = await controller.update(update_from("A", mode=mode))

    whole = Progress(
        tensors_done=report.tensors_applied,
        tensors_total=report.tensors_applied,
        bytes_done=report.bytes_applied,
        bytes_total=report.bytes_applied,
    )
    assert report.bytes_applied > 0
    assert heard[0].progress is None
    begun = shown[0]
    assert (begun["phase"], begun["bytes_total"]) in (
        ("staging", None),  # nothing is known of the source yet
        ("queued", report.bytes_applied),
    )
    assert heard[-1].progress == whole
    queued = heard[steps(heard).index("queued")].progress
    assert queued is not None
    # Direct buckets come only once forward passes have stopped.
    assert queued.bytes_done == (report.bytes_applied if mode is LoadMode.STAGED else 0)
    assert queued.bytes_total == shown[-1]["bytes_total"] == report.bytes_applied


async def test_updates_are_numbered_and_a_refusal_brings_its_error() -> None:
    rig = make_rig()
    heard: list[UpdateNews] = []
    rig.controller.observe_updates(heard.append)

    async with rig.controller as controller:
        with pytest.raises(UpdateRejected) as rejected:
            await controller.update(update_from("wrong"))
        await controller.update(update_from("A"))

    assert [(news.number, news.outcome) for news in heard if news.outcome] == [
        (1, "rejected"),
        (2, "committed"),
    ]
    assert heard[2].error is rejected.value
    assert heard[2].report is None


async def test_a_torn_update_says_failed() -> None:
    rig = make_rig()
    heard: list[UpdateNews] = []
    rig.controller.observe_updates(heard.append)
    rig.steps.fail("write", RuntimeError("once"))
    rig.steps.fail("write", RuntimeError("twice"), at=1)

    async with rig.controller as controller:
        with pytest.raises(UpdateFailed):
            await controller.update(update_from("A"))

    assert heard[-1].outcome == "failed"
    assert isinstance(heard[-1].error, UpdateFailed)


async def test_a_staged_update_that_a_shutdown_drops_says_dropped() -> None:
    rig = make_rig()
    heard: list[UpdateNews] = []
    rig.controller.observe_updates(heard.append)
    hold = rig.steps.hold("open")
    update = asyncio.ensure_future(rig.controller.update(update_from("A")))
    await hold.arrived.wait()

    await rig.controller.close()

    with pytest.raises(ShuttingDown, match="dropped before its first write"):
        await update
    assert steps(heard) == ["waiting", "staging", "dropped"]
    assert rig.controller.counters.updates == {("fake", "dropped"): 1}


async def test_an_observer_that_fails_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = make_rig()
    heard: list[UpdateNews] = []

    def fail(news: UpdateNews) -> None:
        raise RuntimeError("the observer is broken")

    rig.controller.observe_updates(fail)
    rig.controller.observe_updates(heard.append)
    async with rig.controller as controller:
        with caplog.at_level(logging.ERROR):
            await controller.update(update_from("A"))

    assert heard[-1].outcome == "committed"
    assert len([record for record in caplog.records if record.exc_info]) == len(heard) == 5
