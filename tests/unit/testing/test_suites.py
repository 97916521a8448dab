"""Nobody overrides a test of a suite in silence."""

import re
import sys
import unittest
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import torch

import hotswap.testing
from hotswap.seams import LoadStrategy, Stage
from hotswap.testing import (
    PreReadTests,
    Publish,
    StrategyTests,
    WrongFixture,
    leave_out,
    override,
    run_suite,
)
from hotswap.testing.cancelling import cancelled_at
from hotswap.testing.given import wanted_fixture
from hotswap.testing.suites import NeverEnded, Suite
from hotswap.types import Placement, Update
from hotswap.uninterrupted import on_worker_thread
from tests.unit.testing.file_strategy import FileStrategy, publisher
from tests.unit.testing.planting import explained


def test_an_override_without_a_reason_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Quiet overrides test_no_tensor_is_missing of its suite"):

        class Quiet(StrategyTests):
            def test_no_tensor_is_missing(self, strategy: LoadStrategy, publish: Publish) -> None:
                pass


def test_so_is_a_test_that_is_set_to_nothing() -> None:
    with pytest.raises(TypeError, match="test_no_tensor_is_missing"):
        type("Gone", (StrategyTests,), {"test_no_tensor_is_missing": None})


def test_so_is_one_that_comes_from_a_class_beside_the_suite() -> None:
    class Aside:
        def test_no_tensor_is_missing(self) -> None:
            pass

    with pytest.raises(TypeError, match="test_no_tensor_is_missing"):
        type("Mixed", (Aside, StrategyTests), {})


def test_an_override_with_a_reason_is_run_and_inherited() -> None:
    ran: list[str] = []

    class Said(StrategyTests):
        @override("the source has no such thing")
        def test_no_tensor_is_missing(self, strategy: LoadStrategy, publish: Publish) -> None:
            ran.append("mine")

    class Further(Said):
        pass

    only = ["test_no_tensor_is_missing"]
    fixtures = {"strategy": object, "publish": object}
    assert run_suite(Further, fixtures, only=only) == {only[0]: None}
    assert ran == ["mine"]


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_a_reason_says_something(reason: str) -> None:
    with pytest.raises(TypeError, match="the reason for an override is"):
        override(reason)


def test_a_test_that_is_left_out_is_skipped_and_says_why() -> None:
    class Less(StrategyTests):
        test_no_tensor_is_missing = leave_out("tensors are optional there")

    with pytest.raises(unittest.SkipTest, match="tensors are optional there"):
        Less().test_no_tensor_is_missing()
    only = ["test_no_tensor_is_missing"]
    assert run_suite(Less, {}, only=only) == {only[0]: None}


def test_a_test_that_never_ends_is_ended() -> None:
    class Hangs(Suite):
        limit_s = 0.05

    async def hang() -> None:
        await anyio.sleep_forever()

    with pytest.raises(TimeoutError):
        Hangs().run(hang)


def test_the_names_of_the_package_are_found_and_no_others() -> None:
    for name in hotswap.testing.__all__:
        assert getattr(hotswap.testing, name) is not None
    assert set(dir(hotswap.testing)) == set(hotswap.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = hotswap.testing.Nope


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_no_tensor_is_mising", "did you mean test_no_tensor_is_missing?"),
        ("test_qqq", "wanted one of test_a_bucket_stays_valid"),
    ],
)
def test_a_reason_for_what_is_no_test_is_refused(name: str, says: str) -> None:
    with pytest.raises(TypeError, match=f"overrides {name}, and its suite has no such") as caught:
        type("Misspelt", (StrategyTests,), {name: leave_out("tensors are optional there")})
    assert says in str(caught.value)


def test_a_setting_that_is_misspelt_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Short sets dtype, .* did you mean dtypes\?"):
        type("Short", (StrategyTests,), {"dtype": (torch.float32,)})
    made = type("Own", (StrategyTests,), {"dtypes": (torch.float32,), "folder": "x", "_dtype": 1})
    assert issubclass(made, StrategyTests)


def test_a_suite_made_of_another_says_why_it_overrides_too() -> None:
    with pytest.raises(TypeError, match="MySuite overrides test_no_tensor_is_missing"):

        class MySuite(StrategyTests, suite=True):
            def test_no_tensor_is_missing(self, strategy: LoadStrategy, publish: Publish) -> None:
                pass


def test_a_suite_made_of_another_has_the_tests_of_both() -> None:
    class Longer(StrategyTests, suite=True):
        def test_something_else(self, strategy: LoadStrategy) -> None:
            """Beside what every strategy has to do."""

    class Mine(Longer):
        test_something_else = leave_out("nothing to look for")

    assert set(Mine.tests) == {*StrategyTests.tests, "test_something_else"}


def test_a_parametrisation_alone_is_no_reason_and_goes_with_one() -> None:
    def parametrised(self: object, strategy: LoadStrategy, publish: Publish, times: int) -> None:
        pass

    test = pytest.mark.parametrize("times", [1, 2])(parametrised)
    with pytest.raises(TypeError, match="overrides test_buckets_start_afresh"):
        type("Quiet", (StrategyTests,), {"test_buckets_start_afresh": test})
    said = override("the source has several parts")(test)
    made = type("Said", (StrategyTests,), {"test_buckets_start_afresh": said})
    assert [mark.name for mark in vars(made)["test_buckets_start_afresh"].pytestmark] == [
        "parametrize"
    ]


def test_a_name_that_is_no_test_cannot_be_asked_for() -> None:
    fixtures = {"strategy": object, "publish": object}
    with pytest.raises(ValueError, match=r"'test_no_tensor_is_mising' is no test .* did you mean"):
        run_suite(StrategyTests, fixtures, only=["test_no_tensor_is_mising"])


@pytest.mark.parametrize(
    ("fixtures", "says"),
    [
        ({"strategy": object}, r"wants the fixture publish and the class has none; write a method"),
        (
            {"strategy": object, "publish": object, "publsh": object},
            r"no test of StrategyTests takes the fixture publsh; did you mean publish\?",
        ),
    ],
)
def test_fixtures_are_those_that_the_suite_takes(
    fixtures: dict[str, Callable[[], object]], says: str
) -> None:
    with pytest.raises(WrongFixture, match=says):
        run_suite(StrategyTests, fixtures, only=["test_no_tensor_is_missing"])


def test_without_pytest_the_suites_have_no_fixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert wanted_fixture("strategy", suite="StrategyTests") is None


def test_a_plug_in_that_raises_is_told_which_test_it_failed() -> None:
    class Raises(Suite, suite=True):
        def test_it_goes_well(self) -> None:
            """And ends."""
            raise OSError("the disk is gone")

    error = run_suite(Raises, {})["test_it_goes_well"]
    assert isinstance(error, OSError)
    assert error.__notes__ == [
        "The plug-in raised this in test_it_goes_well (And ends.); put right what raises it."
    ]


def test_a_test_that_never_ends_says_where_it_waits() -> None:
    class Hangs(Suite):
        limit_s = 0.05

    async def hang() -> None:
        await anyio.sleep_forever()

    with pytest.raises(NeverEnded, match=r"limit_s = 0.05 s, in hang \(test_suites.py:\d+\); let"):
        Hangs().run(hang)


@pytest.mark.parametrize("only_inside", [False, True])
def test_where_a_call_waits_is_found_through_generators_and_tasks(only_inside: bool) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        await on_worker_thread(int)
        yield

    async def use() -> None:
        async with opened():
            pass

    async def stop() -> str:
        work = on_worker_thread(int) if only_inside else use()
        return (await cancelled_at(0, work, kind="scope")).place

    place = anyio.run(stop)
    assert re.fullmatch(
        r"uninterrupted \(uninterrupted.py:\d+\)"
        if only_inside
        else r"opened \(test_suites.py:\d+\)",
        place,
    )


def test_a_missing_source_that_is_waited_for_is_told_with_the_place() -> None:
    class Short(PreReadTests):
        limit_s = 0.05

    async def wait(source: str) -> None:
        await anyio.sleep_forever()

    test = "test_a_source_that_is_not_there_is_an_error"
    fixtures = {"pre_read": lambda: wait, "hide": lambda: None}
    explained(
        run_suite(Short, fixtures, only=[test])[test],
        r"'/hotswap-conformance/no-such-source', which is not there, is waited for without end: "
        r"waited for longer than limit_s = 0.05 s, in wait \(test_suites.py:\d+\)",
    )


def test_a_missing_source_that_opening_waits_for_is_told_with_the_place(tmp_path: Path) -> None:
    class Waits(FileStrategy):
        @asynccontextmanager
        async def open(self, update: Update, placement: Placement) -> AsyncIterator[Stage]:
            if update.source.startswith("/hotswap-conformance/"):
                await anyio.sleep_forever()
            async with super().open(update, placement) as stage:
                yield stage

    class Short(StrategyTests):
        limit_s = 5.0

    test = "test_a_source_that_is_not_there_is_refused"
    fixtures = {"strategy": Waits, "publish": lambda: publisher(tmp_path)}
    explained(
        run_suite(Short, fixtures, only=[test])[test],
        r"opening '/hotswap-conformance/no-such-source', which is not there, did not end: waited "
        r"for longer than limit_s = 5 s, in open \(test_suites.py:\d+\)",
    )
