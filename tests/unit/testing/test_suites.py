"""Nobody overrides a test of a suite in silence."""

import unittest

import anyio
import pytest

import hotswap.testing
from hotswap.seams import LoadStrategy
from hotswap.testing import Publish, StrategyTests, leave_out, override, run_suite
from hotswap.testing.suites import Suite


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
