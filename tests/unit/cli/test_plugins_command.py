"""``hotswap plugins``: what is installed, and what was refused."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint

import pytest

from hotswap import plugins as plugin_finding
from hotswap.cli import main


def test_plugins_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"plugins", "refused"}
    for plugin in shown["plugins"]:
        assert set(plugin) == {
            "name",
            "version",
            "module",
            "hooks",
            "strategies",
            "engines",
            "flags",
            "routes",
        }


def test_plugins_that_were_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = EntryPoint(name="broken", value="hotswap_no_such_module", group="hotswap")
    monkeypatch.setattr(plugin_finding, "installed_entry_points", lambda group: ([refused], []))

    assert main(["plugins"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("refused  ")
    assert "hotswap_no_such_module" in shown


def test_no_plugins_at_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_finding, "installed_entry_points", lambda group: ([], []))

    assert main(["plugins"]) == 0
    assert "hotswap-disk" in capsys.readouterr().out


def test_plugins_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plugins", "--json"])
    names = [plugin["name"] for plugin in json.loads(capsys.readouterr().out)["plugins"]]

    assert main(["plugins"]) == 0
    shown = capsys.readouterr().out
    assert shown.strip()
    for name in names:
        assert f"loaded   {name} " in shown
