"""Plug-ins are found, checked, and taken whole or refused whole."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import fields
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path
from typing import Any

import pytest

from hotswap.errors import PluginError
from hotswap.hookspecs import Hooks
from hotswap.options import Option
from hotswap.plugin_loading import api_version_fault
from hotswap.plugins import (
    EMBEDDED,
    LoadedPlugin,
    Plugins,
    load_plugins,
    missing_strategy_message,
    resolve_engine,
    resolve_strategies,
)
from hotswap.seams import Stage
from hotswap.types import Manifest, Placement, Update

Install = Callable[..., EntryPoint]

API = "hotswap_api_version = 1\n"
GOOD = (
    API
    + """
from starlette.responses import PlainTextResponse
from hotswap.http import Kind, KindedRoute
from hotswap.options import Option

seen = []

from prometheus_client import Counter

reads = Counter("hotswap_rsync_reads_total", "Reads.", registry=None)

async def hello(request):
    return PlainTextResponse("hello")

def hotswap_strategies():
    return {"rsync": lambda values: None}

def hotswap_engines():
    return {"toy": lambda values: None}

def hotswap_options():
    return [Option(name="rsync-host", help="where from"), Option(name="fast", help="", type=bool)]

def hotswap_routes():
    return [KindedRoute("/rsync", hello, kind=Kind.CONTROL, methods=["POST"])]

def hotswap_metrics():
    return [reads]

async def hotswap_pre_read(source):
    seen.append(source)

async def hotswap_post_write(version, directory):
    seen.append((version, directory))

def hotswap_changed(change):
    seen.append(change)
"""
)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a dist with one module and return its entry point."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    written: list[str] = []

    def write(dist: str, code: str, *, version: str = "1.0", target: str = "") -> EntryPoint:
        module = dist.replace("-", "_") + "_under_test"
        (site / f"{module}.py").write_text(code)
        folder = site / f"{dist.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(f"[hotswap]\nit = {target or module}\n")
        written.append(module)
        [entry_point] = PathDistribution(folder).entry_points
        return entry_point

    yield write
    for module in written:
        sys.modules.pop(module, None)


def refusal(*found: EntryPoint, reserved: tuple[str, ...] = ()) -> str:
    """Why the last one was refused; everything else of it has to be absent."""
    plugins = load_plugins(found=found, reserved_options=reserved)
    [refused] = plugins.refusals
    assert refused.name not in [plugin.name for plugin in plugins.dists]
    return refused.reason


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


BAD: dict[str, tuple[str, str]] = {
    "does not import": ("import nonexistent_module_of_nobody", "ModuleNotFoundError"),
    "does not parse": ("def", "SyntaxError"),
    "raises": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "no API version": ("", "hotswap_api_version is missing, this hotswap wants 1"),
    "a later API version": ("hotswap_api_version = 2", "hotswap_api_version is 2"),
    "an API version that is text": ("hotswap_api_version = '1'", "hotswap_api_version is '1'"),
    "an API version that is a bool": ("hotswap_api_version = True", "hotswap_api_version is True"),
    "unknown hook": (API + "def hotswap_stratgies(): ...", "hotswap_stratgies is no hook"),
    "hook is no function": (API + "hotswap_changed = 3", "hotswap_changed is a int"),
    "def for async def": (
        API + "def hotswap_pre_read(source, version): ...",
        "hotswap_pre_read is not written as 'async def'",
    ),
    "async def for def": (
        API + "async def hotswap_strategies(): return {}",
        "hotswap_strategies is not written as 'def'",
    ),
    "unknown argument": (
        API + "async def hotswap_pre_read(source, sauce): ...",
        "sauce",
    ),
    "hook raises": (API + "def hotswap_options(): 1 / 0", "hotswap_options failed: ZeroDivision"),
    "strategies are a list": (
        API + "def hotswap_strategies(): return ['a']",
        "hotswap_strategies returned a list, wanted a mapping",
    ),
    "strategies are None": (API + "def hotswap_strategies(): ...", "returned a NoneType"),
    "a strategy is no factory": (
        API + "def hotswap_strategies(): return {'a': 1}",
        "hotswap_strategies returned 'a': 1",
    ),
    "a strategy without a name": (
        API + "def hotswap_strategies(): return {'': print}",
        "hotswap_strategies returned ''",
    ),
    "engines are text": (API + "def hotswap_engines(): return 'x'", "hotswap_engines returned"),
    "options are names": (
        API + "def hotswap_options(): return ['a']",
        "hotswap_options returned a list, wanted a list of Option",
    ),
    "options are a generator": (API + "def hotswap_options(): yield 1", "returned a generator"),
    "option twice": (
        API
        + "from hotswap.options import Option\n"
        + "def hotswap_options(): return [Option(name='a', help='')] * 2",
        "the same flag twice",
    ),
    "option against its own negation": (
        API
        + "from hotswap.options import Option\n"
        + "def hotswap_options(): return [Option(name='a', help='', type=bool), "
        + "Option(name='no-a', help='')]",
        "the same flag twice",
    ),
    "option declared badly": (
        API
        + "from hotswap.options import Option\n"
        + "def hotswap_options(): return [Option(name='A_b', help='')]",
        "option name 'A_b'",
    ),
    "a route without a kind": (
        API
        + "from starlette.routing import Route\n"
        + "def hotswap_routes(): return [Route('/x', print)]",
        "says no kind",
    ),
    "metrics are names": (
        API + "def hotswap_metrics(): return ['a']",
        "'a', which has no collect()",
    ),
    "a metric is a class": (
        API + "from prometheus_client import Counter\n" + "def hotswap_metrics(): return [Counter]",
        "which has no collect()",
    ),
    "metrics are one metric": (
        API
        + "from prometheus_client import Counter\n"
        + "def hotswap_metrics(): return Counter('a', 'A.', registry=None)",
        "returned a Counter, wanted a list of object",
    ),
    "routes are paths": (API + "def hotswap_routes(): return ['/x']", "wanted a list of BaseRoute"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_plugin_is_refused_alone(
    install: Install, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    code, says = BAD[case]
    good = install("hotswap-rsync", GOOD)
    bad = install("hotswap-bad", code)
    with caplog.at_level(logging.WARNING, "hotswap.plugins"):
        plugins = load_plugins(found=[bad, good])
    assert [plugin.name for plugin in plugins.dists] == ["hotswap-rsync"]
    [refused] = plugins.refusals
    assert (refused.name, refused.version) == ("hotswap-bad", "1.0")
    assert says in refused.reason
    [record] = caplog.records
    assert record.getMessage() == f"plug-in refused: {refused}"


def test_objects_that_fail_when_looked_at_are_refused(install: Install) -> None:
    code = """
class Plugin:
    hotswap_api_version = 1
    @property
    def hotswap_changed(self):
        raise RuntimeError("do not touch")
plugin = Plugin()
"""
    target = "hotswap_one_under_test:plugin"
    assert "do not touch" in refusal(install("hotswap-one", code, target=target))


def test_an_imported_module_with_the_prefix_is_no_hook(install: Install) -> None:
    install("hotswap-helper", "")
    code = API + "import hotswap_helper_under_test\n"
    assert load_plugins(found=[install("hotswap-one", code)]).refusals == ()


OPTION = "from hotswap.options import Option\n"
ROUTE = (
    "from hotswap.http import Kind, KindedRoute\n"
    "def hotswap_routes(): return [KindedRoute('/x', print, kind=Kind.OPEN, methods=['GET'])]\n"
)
CLASHES = {
    "strategy": ("def hotswap_strategies(): return {'x': print}\n", "load strategy 'x'"),
    "engine": ("def hotswap_engines(): return {'x': print}\n", "engine 'x'"),
    "option": (
        OPTION + "def hotswap_options(): return [Option(name='x', help='')]\n",
        "flag '--x'",
    ),
    "route": (ROUTE, "route '/x'"),
}


@pytest.mark.parametrize("kind", CLASHES)
def test_of_two_that_clash_the_later_name_is_refused(install: Install, kind: str) -> None:
    code, says = CLASHES[kind]
    first = install("hotswap-a", API + code)
    second = install("hotswap-b", API + code + "def hotswap_changed(change): ...\n")
    for found in ([first, second], [second, first]):
        plugins = load_plugins(found=found)
        assert [plugin.name for plugin in plugins.dists] == ["hotswap-a"]
        assert plugins.changed == ()
        [refused] = plugins.refusals
        assert refused.reason == f"{says} belongs to hotswap-a already"


@pytest.mark.parametrize("name", ["port", "help", "no-port"])
def test_an_option_of_the_server_cannot_be_taken(install: Install, name: str) -> None:
    code = API + OPTION + f"def hotswap_options(): return [Option(name={name!r}, help='')]"
    reason = refusal(install("hotswap-a", code), reserved=("port",))
    assert reason == f"flag '--{name}' belongs to hotswap itself already"


def test_a_route_of_the_server_cannot_be_taken(install: Install) -> None:
    bad = install("hotswap-a", API + ROUTE)
    plugins = load_plugins(found=[bad], reserved_routes=["/x"])
    assert plugins.routes == ()
    assert plugins.refusals[0].reason == "route '/x' belongs to hotswap itself already"


def test_the_name_of_the_embedded_engine_cannot_be_taken(install: Install) -> None:
    code = API + f"def hotswap_engines(): return {{{EMBEDDED!r}: print}}"
    reason = refusal(install("hotswap-a", code))
    assert reason == "engine 'embedded' belongs to hotswap itself already"


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


def test_the_same_object_twice_is_refused(install: Install) -> None:
    found = install("hotswap-a", API)
    [twin] = [EntryPoint(name="twin", value=found.value, group=found.group)]
    plugins = load_plugins(found=[found, twin])
    assert len(plugins.dists) == 1
    assert "already registered" in plugins.refusals[0].reason
    assert (plugins.refusals[0].name, plugins.refusals[0].version) == ("twin", "?")


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
    with pytest.raises(PluginError, match=r"'vllm' is not installed \(installed: embedded\): pip"):
        resolve_engine(Plugins(), "vllm", {})


def test_a_plugin_that_adds_nothing_says_which_hooks_it_has() -> None:
    made = LoadedPlugin(
        name="a", version="1", module="a", hooks=("hotswap_changed",), strategies=()
    )
    assert made.brings == "hooks: hotswap_changed"


def test_a_missing_strategy_names_the_dist_to_install(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-disk", API), install("hotswap-rsync", GOOD)])
    assert missing_strategy_message("s3", plugins) == (
        "load strategy 's3' is not installed (installed: rsync): "
        "pip install hotswap-s3, then restart the server"
    )
    assert "(installed: none)" in missing_strategy_message("s3", Plugins())


def test_a_refused_strategy_is_not_to_be_installed_again(install: Install) -> None:
    plugins = load_plugins(found=[install("hotswap-disk", "hotswap_api_version = 9")])
    message = missing_strategy_message("disk", plugins)
    assert "refused at load: hotswap_api_version is 9" in message
    assert "pip install" not in message


@pytest.mark.parametrize("name", ["", "a b", "x; rm -rf /", "--upgrade", "../x", "Ä"])
def test_no_install_is_advised_for_a_name_that_cannot_be(name: str) -> None:
    assert "pip install" not in missing_strategy_message(name, Plugins())


def test_options_are_those_of_the_plugins() -> None:
    assert Option(name="a-b", help="").env == "HOTSWAP_A_B"
