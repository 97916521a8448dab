"""A plug-in that is not as it should be is refused whole, alone, and with the reason."""

import logging
from importlib.metadata import EntryPoint

import pytest

from hotswap.plugins import EMBEDDED, load_plugins
from tests.unit.plugin_dists import API, GOOD, Install, install

__all__ = ["install"]


def refusal(*found: EntryPoint, reserved: tuple[str, ...] = ()) -> str:
    """Why the last one was refused; everything else of it has to be absent."""
    plugins = load_plugins(found=found, reserved_options=reserved)
    [refused] = plugins.refusals
    assert refused.name not in [plugin.name for plugin in plugins.dists]
    return refused.reason


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


@pytest.mark.parametrize("owner", ["hotswap-x", "Hotswap_X"])
@pytest.mark.parametrize("owners_code", [None, "raise OSError"])
@pytest.mark.parametrize("kind", ["strategy", "engine"])
def test_a_name_is_its_dists_wherever_that_is_installed(
    install: Install,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    owners_code: str | None,
    owner: str,
) -> None:
    """Also while its own plug-in is refused: nobody steps into its place."""
    code, says = CLASHES[kind]
    thief = install("aaa-first", API + code)
    theirs = install(owner, API + code if owners_code is None else owners_code)
    for found in ([thief, theirs], [theirs, thief]):
        caplog.clear()
        plugins = load_plugins(found=found)
        assert [one.name for one in plugins.dists] == ([] if owners_code else [owner])
        refused = {one.name: one.reason for one in plugins.refusals}
        assert refused["aaa-first"] == (
            f"{says} belongs to hotswap-x, which is installed; give it another name"
        )
        assert f"plug-in refused: aaa-first 1.0 ({thief.value}): {says} belongs to" in caplog.text
    assert load_plugins(found=[thief]).refusals == ()


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


def test_the_same_object_twice_is_refused(install: Install) -> None:
    found = install("hotswap-a", API)
    [twin] = [EntryPoint(name="twin", value=found.value, group=found.group)]
    plugins = load_plugins(found=[found, twin])
    assert len(plugins.dists) == 1
    assert "already registered" in plugins.refusals[0].reason
    assert (plugins.refusals[0].name, plugins.refusals[0].version) == ("twin", "?")
