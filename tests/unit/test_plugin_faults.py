"""Plug-ins that break what looks for them: each is refused by its name, and nobody else is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path
from typing import Any

import pytest

from hotswap.embed import HotSwap
from hotswap.errors import PluginError, UpdateRejected
from hotswap.plugin_hooks import ChangedHook, PreReadHook
from hotswap.plugin_scan import installed_entry_points
from hotswap.plugins import Plugins, load_plugins, resolve_engine, resolve_strategies
from tests.unit.embed.modules import filled
from tests.unit.plugin_dists import API, GOOD, Install, install

__all__ = ["install"]

STRATEGIES = API + "def hotswap_strategies(): return {{{name!r}: print}}\n"
RAISES = API + "def hotswap_{hook}(): raise {error}\n"
HOOKS = ("strategies", "engines", "options", "routes", "metrics")

FAULTS: dict[str, tuple[str, str]] = {
    "raises KeyboardInterrupt": (
        "raise KeyboardInterrupt('stop')",
        "imported: KeyboardInterrupt: stop",
    ),
    "raises what is no Exception": (
        "class Stop(BaseException): ...\nraise Stop('now')",
        "cannot be imported: Stop: now",
    ),
    "raises lines": ("raise ValueError('one\\n\\ttwo\\r\\nthree')", "ValueError: one two three"),
    "raises what has no message": (
        "class Mute(Exception):\n    def __str__(self): return 1 / 0\nraise Mute",
        "cannot be imported: Mute: (its message cannot be read)",
    ),
    "changed is a generator": (
        API + "def hotswap_changed(change): yield change",
        "hotswap_changed has a yield",
    ),
    "pre_read is an asynchronous generator": (
        API + "async def hotswap_pre_read(source): yield source",
        "hotswap_pre_read has a yield",
    ),
    "pre_read is a generator": (
        API + "def hotswap_pre_read(source): yield source",
        "hotswap_pre_read has a yield",
    ),
    "post_write is an asynchronous generator": (
        API + "async def hotswap_post_write(directory): yield",
        "hotswap_post_write has a yield",
    ),
    "a mapping that raises": (
        API
        + "class Odd(dict):\n    def items(self): raise OSError('gone')\n"
        + "def hotswap_strategies(): return Odd(a=print)",
        "OSError: gone",
    ),
    "the name of pushes": (
        STRATEGIES.format(name="push"),
        "load strategy 'push' belongs to hotswap itself already",
    ),
    **{
        f"hotswap_{hook} raises {error}": (
            RAISES.format(hook=hook, error=error),
            f"hotswap_{hook} failed: {error}",
        )
        for hook in HOOKS
        for error in ("SystemExit", "KeyboardInterrupt", "GeneratorExit")
    },
    **{
        f"hotswap_{hook} has a yield": (
            API + f"def hotswap_{hook}(): yield",
            f"hotswap_{hook} has a yield",
        )
        for hook in HOOKS
    },
    **{
        f"a strategy is called {name!a}": (
            STRATEGIES.format(name=name),
            f"hotswap_strategies returned the name {name!a}",
        )
        for name in ("a b", "a\nb", " a", "a\t", "é", "\x1b[31m", "-a", "a-", "a/b", "a" * 65)
    },
    "an engine is called with a space": (
        API + "def hotswap_engines(): return {'my engine': print}",
        "hotswap_engines returned the name 'my engine', wanted at most 64 ASCII letters",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plugin_is_refused_by_name_and_alone(
    install: Install, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    code, says = FAULTS[fault]
    good, bad = install("hotswap-rsync", GOOD), install("hotswap-bad", code)
    with caplog.at_level(logging.WARNING, "hotswap.plugins"):
        plugins = load_plugins(found=[bad, good])
    assert [plugin.name for plugin in plugins.dists] == ["hotswap-rsync"]
    [refused] = plugins.refusals
    assert refused.name == "hotswap-bad"
    assert says in refused.reason
    assert str(refused).splitlines() == [str(refused)]
    assert [record.getMessage() for record in caplog.records] == [f"plug-in refused: {refused}"]


@pytest.mark.parametrize("name", ["rsync", "gpu_direct", "S3.v2", "a", "a" * 64])
def test_a_name_that_a_dist_could_have_is_taken(install: Install, name: str) -> None:
    plugins = load_plugins(found=[install("hotswap-a", STRATEGIES.format(name=name))])
    assert list(plugins.strategies) == [name]


@pytest.mark.parametrize("value", ["a b c", "", "a:b:c", "1", "a.b.", "a [x", "é ü"])
def test_an_entry_point_that_is_none_is_refused_by_its_value(value: str, install: Install) -> None:
    good = install("hotswap-rsync", GOOD)
    bad = EntryPoint(name="odd", value=value, group="hotswap")
    plugins = load_plugins(found=[bad, good])
    assert [plugin.name for plugin in plugins.dists] == ["hotswap-rsync"]
    [refused] = plugins.refusals
    assert (refused.name, refused.module) == ("odd", value)
    assert "wanted a module, or module:object" in refused.reason or "import" in refused.reason


def dist(site: Path, name: str, entry_points: str, *, metadata: str | None = None) -> None:
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir()
    said = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" if metadata is None else metadata
    (folder / "METADATA").write_text(said)
    (folder / "entry_points.txt").write_text(entry_points)


BROKEN_LISTS: dict[str, str] = {
    "no module": "[hotswap]\np = a b c\n",
    "no equals sign": "[hotswap]\njust-a-name\n",
    "nothing after the equals sign": "[hotswap]\np =\n",
    "another group is broken too": "[console_scripts]\noops\n\n[hotswap]\nalso-oops\n",
}


@pytest.mark.parametrize("what", BROKEN_LISTS)
def test_a_broken_list_of_one_dist_stops_neither_the_listing_nor_a_server(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from hotswap.cli.entry import main

    dist(tmp_path, "hotswap-broken", BROKEN_LISTS[what])
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING, "hotswap.plugins"):
        assert main(["plugins"]) == 0
    told = capsys.readouterr().out.splitlines()
    [refused] = [line for line in told if line.startswith("refused")]
    assert refused.startswith("refused  hotswap-broken 1.0 (")
    assert any(line.startswith("loaded   hotswap-disk") for line in told)
    assert any("plug-in refused: hotswap-broken 1.0" in line for line in caplog.messages)
    swap = HotSwap(filled(1.0))
    assert str(swap.controller.machine.state) == "serving"


def test_a_dist_without_a_name_is_called_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist(tmp_path, "x", "[hotswap]\nnameless = nonexistent_module_of_nobody\n", metadata="")
    found, unreadable = installed_entry_points(
        "hotswap", dists=[PathDistribution(tmp_path / "x-1.0.dist-info")]
    )
    assert unreadable == []
    plugins = load_plugins(found=found)
    assert [(one.name, one.version) for one in plugins.refusals] == [("nameless", "?")]


def test_of_two_dists_with_one_name_the_first_counts(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        dist(folder, "hotswap-a", f"[hotswap]\na = module_{number}\n")
    dists = [PathDistribution(folder / "hotswap_a-1.0.dist-info") for folder in folders]
    found, _ = installed_entry_points("hotswap", dists=dists)
    assert [entry_point.value for entry_point in found] == ["module_0"]


def test_a_list_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    dist(tmp_path, "binary", "")
    (tmp_path / "binary-1.0.dist-info" / "entry_points.txt").write_bytes(b"[hotswap]\n\xff\xfe\n")
    dists = [PathDistribution(tmp_path / "binary-1.0.dist-info")]
    assert installed_entry_points("hotswap", dists=dists) == ([], [])


class Strategy:
    def open(self, update: object, placement: object) -> None: ...


def stop(error: BaseException) -> Callable[[object], Any]:
    def make(_values: object) -> Any:
        raise error

    return make


FACTORIES: dict[str, tuple[Callable[..., Any], str]] = {
    "makes a class": (lambda _values: Strategy, "made the class Strategy, and no object of it"),
    "exits": (stop(SystemExit(4)), "cannot start: SystemExit: 4"),
    "interrupts": (stop(KeyboardInterrupt()), "cannot start: KeyboardInterrupt"),
    "raises without a word": (stop(ValueError()), "cannot start: ValueError"),
    "takes no values": (lambda: Strategy(), "cannot start: .* takes 0 positional arguments"),
}


@pytest.mark.parametrize("what", FACTORIES)
def test_a_faulty_factory_is_named_and_ends_nothing_else(what: str) -> None:
    make, says = FACTORIES[what]
    with pytest.raises(PluginError, match=rf"^load strategy 'a'.*{says}"):
        resolve_strategies(Plugins(strategies={"a": make}), {})
    with pytest.raises(PluginError, match=rf"^engine 'a'.*{says}"):
        resolve_engine(Plugins(engines={"a": make}), "a", {})


async def test_a_hook_that_exits_does_not_end_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def pre_read(source: str, version: str | None) -> None:
        raise SystemExit(3)

    with pytest.raises(UpdateRejected, match=r"a: pre-read hook failed: .*SystemExit: 3"):
        await PreReadHook(name="a", call=pre_read)("x", None)
    change: Any = "a change"
    ChangedHook(name="a", call=stop(SystemExit(3)))(change)
    assert "a: hotswap_changed failed on a change" in caplog.text
