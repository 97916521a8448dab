"""Plug-ins are found, and what each of them brings is taken whole."""

import sys
from dataclasses import fields

import pytest

from hotswap.hookspecs import Hooks
from hotswap.options import Option
from hotswap.plugin_loading import api_version_fault
from hotswap.plugins import LoadedPlugin, Plugins, load_plugins
from tests.unit.plugin_dists import API, GOOD, Install, install

__all__ = ["install"]


async def test_everything_that_a_plugin_brings(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-rsync", GOOD, version="2.1")])
    assert plugins.refusals == ()
    assert plugins.strategies.keys() == {"rsync"}
    assert plugins.engines.keys() == {"toy"}
    assert [option.name for option in plugins.options] == ["rsync-host", "fast"]
    assert [getattr(route, "path", None) for route in plugins.routes] == ["/rsync"]
    assert [type(collector).__name__ for collector in plugins.metrics] == ["Counter"]
    [plugin] = plugins.dists
    assert (plugin.name, plugin.version) == ("hotswap-rsync", "2.1")
    assert plugin.brings == (
        "strategies: rsync; engines: toy; flags: --rsync-host, --fast; routes: /rsync"
    )
    assert plugin.module == "hotswap_rsync_under_test"
    assert plugin.strategies == ("rsync",)
    assert set(plugin.hooks) == {name for name in vars(Hooks) if name.startswith("hotswap_")}


async def test_hooks_get_the_arguments_that_they_name(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-rsync", GOOD)])
    seen = sys.modules["hotswap_rsync_under_test"].seen
    await plugins.pre_read[0]("/models/v1", "7")
    await plugins.post_write[0]("/models/v2", "8")
    assert seen == ["/models/v1", ("8", "/models/v2")]


def test_installed_plugins_are_found(install: Install) -> None:
    install("hotswap-rsync", GOOD)
    assert "hotswap-rsync" in [plugin.name for plugin in load_plugins().dists]


def test_every_field_of_an_empty_value_is_empty() -> None:
    plugins = load_plugins(found=[])
    assert plugins == Plugins()
    assert all(not getattr(plugins, field.name) for field in fields(plugins))


def test_an_object_may_be_a_plugin(install: Install) -> None:
    code = """
class Plugin:
    hotswap_api_version = 1
    def hotswap_strategies(self):
        return {"one": lambda values: None}
plugin = Plugin()
"""
    target = "hotswap_one_under_test:plugin"
    plugins = load_plugins(found=[install("hotswap-one", code, target=target)])
    assert plugins.strategies.keys() == {"one"}


def test_an_imported_module_with_the_prefix_is_no_hook(install: Install) -> None:
    install("hotswap-helper", "")
    code = API + "import hotswap_helper_under_test\n"
    assert load_plugins(found=[install("hotswap-one", code)]).refusals == ()


@pytest.mark.parametrize("stated", [2, 3, 4])
def test_an_api_version_between_oldest_and_newest_is_understood(stated: int) -> None:
    assert api_version_fault(stated, oldest=2, newest=4) is None


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (5, "is 5, this hotswap wants 2 to 4; upgrade hotswap, or install an older release of"),
        (1, "is 1, this hotswap wants 2 to 4; install a newer release of the plug-in"),
        (None, "is missing, this hotswap wants 2 to 4; state the one that the plug-in was"),
        (3.0, "is 3.0, this hotswap wants 2 to 4; state the one"),
    ],
)
def test_any_other_api_version_says_what_to_do(stated: object, says: str) -> None:
    fault = api_version_fault(stated, oldest=2, newest=4)
    assert fault is not None
    assert says in fault


def test_a_plugin_that_adds_nothing_says_which_hooks_it_has() -> None:
    made = LoadedPlugin(
        name="a", version="1", module="a", hooks=("hotswap_changed",), strategies=()
    )
    assert made.brings == "hooks: hotswap_changed"


def test_options_are_those_of_the_plugins() -> None:
    assert Option(name="a-b", help="").env == "HOTSWAP_A_B"
