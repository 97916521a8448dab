"""What plug-ins bring is made from the options, and what is not there is named."""

from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Any

import pytest

from hotswap.errors import PluginError
from hotswap.plugins import (
    Plugins,
    load_plugins,
    missing_strategy_message,
    resolve_engine,
    resolve_strategies,
)
from hotswap.seams import Stage
from hotswap.types import Manifest, Placement, Update
from tests.unit.plugin_dists import API, GOOD, Install, install

__all__ = ["install"]


class Nothing:
    """A strategy that delivers an empty stage."""

    manifest = Manifest.of([])

    def buckets(self) -> tuple[()]:
        return ()

    def open(self, update: Update, placement: Placement) -> AbstractAsyncContextManager[Stage]:
        return nullcontext(self)


def test_strategies_are_made_from_all_option_values() -> None:
    given: list[object] = []

    def make(values: object) -> Nothing:
        given.append(values)
        return Nothing()

    made = resolve_strategies(Plugins(strategies={"a": make}), {"x": 1})
    assert made.keys() == {"a"}
    assert isinstance(made["a"], Nothing)
    assert given == [{"x": 1}]


def test_a_factory_that_refuses_its_values_is_named() -> None:
    def make(values: object) -> Nothing:
        raise ValueError("root /x is no directory")

    with pytest.raises(PluginError, match=r"'a' cannot start: root /x is no directory"):
        resolve_strategies(Plugins(strategies={"a": make}), {})


def test_a_factory_that_makes_something_else_is_named(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-rsync", GOOD)])
    with pytest.raises(PluginError, match=r"'rsync': its factory made a NoneType, wanted"):
        resolve_strategies(plugins, {})


def test_an_engine_is_made_from_all_option_values() -> None:
    given: list[object] = []
    engine: AbstractAsyncContextManager[Any] = AsyncExitStack()

    def make(values: object) -> AbstractAsyncContextManager[Any]:
        given.append(values)
        return engine

    made: object = resolve_engine(Plugins(engines={"a": make}), "a", {"x": 1})
    assert made is engine
    assert given == [{"x": 1}]


def test_an_engine_that_refuses_its_values_is_named() -> None:
    def make(values: object) -> AbstractAsyncContextManager[Any]:
        raise ValueError("no such device")

    with pytest.raises(PluginError, match=r"engine 'a' cannot start: no such device"):
        resolve_engine(Plugins(engines={"a": make}), "a", {})


def test_a_factory_that_makes_no_engine_is_named(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-rsync", GOOD)])
    with pytest.raises(PluginError, match=r"'toy': its factory made a NoneType, wanted an async"):
        resolve_engine(plugins, "toy", {})


def test_a_missing_engine_names_the_dist_to_install() -> None:
    with pytest.raises(PluginError, match=r"'vllm' is not installed \(installed: embedded\): a"):
        resolve_engine(Plugins(), "vllm", {})
    with pytest.raises(PluginError, match=r": pip install hotswap-transformers, then restart"):
        resolve_engine(Plugins(), "transformers", {})
    with pytest.raises(PluginError, match=r"embedded\): did you mean 'embedded'\?$"):
        resolve_engine(Plugins(), "embeded", {})


def test_a_missing_strategy_names_the_dist_to_install(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-disk", API), install("hotswap-rsync", GOOD)])
    assert missing_strategy_message("s3", plugins) == (
        "load strategy 's3' is not installed (installed: rsync): a plug-in that brings it would be "
        "the dist hotswap-s3: if you know whose that is, pip install hotswap-s3, then restart the "
        "server"
    )
    assert "(installed: none)" in missing_strategy_message("s3", Plugins())


def test_a_refused_strategy_is_not_to_be_installed_again(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-disk", "hotswap_api_version = 9")])
    message = missing_strategy_message("disk", plugins)
    assert "refused at load: hotswap_api_version is 9" in message
    assert "pip install" not in message


@pytest.mark.parametrize("name", ["rsnyc", "dsik", "delta_pull", "Disk"])
def test_no_install_is_advised_of_a_name_that_is_nearly_another(
    name: str, install: Install
) -> None:
    plugins = load_plugins(found=[install("hotswap-rsync", GOOD)])
    message = missing_strategy_message(name, plugins)
    assert "did you mean " in message
    assert f"hotswap-{name}" not in message


@pytest.mark.parametrize("name", ["", "a b", "x; rm -rf /", "--upgrade", "../x", "Ä"])
def test_no_install_is_advised_for_a_name_that_cannot_be(name: str) -> None:
    assert "pip install" not in missing_strategy_message(name, Plugins())
