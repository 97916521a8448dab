"""The plug-in template, and a clean environment that has the wheels and nothing of this tree."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import sysconfig
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from hotswap.testing import EngineTests, PreReadTests, StrategyTests
from tests.markdown_blocks import ROOT, blocks_of
from tests.process.built import build_wheel, copy_sources, output_of
from tests.process.clean_environment import clean_environment, install

pytestmark = pytest.mark.process

KINDS = ("strategy", "hook", "engine")

CORE_ALONE = """
import json
import sys
from importlib.metadata import version
from pathlib import Path

import hotswap
from hotswap.testing import ServerProcess, make_checkpoint

def message(reply):
    return reply.status_code, reply.json()["error"]["message"]

model = str(make_checkpoint(Path("model"), seed=1))
prompt = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
with ServerProcess(model) as server, server.client() as client:
    generated = client.post("/generate", json=prompt)
    refused = {
        strategy: message(
            client.post(
                "/update_weights_from_disk", json={"model_path": model, "strategy": strategy}
            )
        )
        for strategy in ("disk", "rsync")
    }
package = Path(hotswap.__file__).parent
print(json.dumps({
    "package": str(package),
    "path": sys.path[1:],
    "typed": (package / "py.typed").is_file(),
    "version": version("hotswap"),
    "tokens": len(generated.json()["output_ids"]),
    "refused": refused,
}))
"""


def test_packages_of_the_template_work_beside_the_wheel(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    wheels = tmp_path / "wheels"
    core = build_wheel(sources, wheels)
    plugins = [build_wheel(sources / "plugins" / "hotswap-disk", wheels)]
    packages = {kind: generated(kind, tmp_path / f"hotswap-my-{kind}") for kind in KINDS}
    assert_clean(packages.values())
    plugins += [build_wheel(package, wheels) for package in packages.values()]

    clean = clean_environment(tmp_path / "clean", wheel=core, extra="testing")
    install(clean, f"{core}[testing]")
    assert_core_alone_serves(clean, core, tmp_path)

    # What hotswap brings along is all that they need.
    install(clean, *map(str, plugins))
    found = json.loads(output_of([str(clean / "hotswap"), "plugins", "--json"], cwd=tmp_path))
    assert found["refused"] == []
    dists = {"hotswap-disk", *(f"hotswap-my-{kind}" for kind in KINDS)}
    assert {plugin["name"] for plugin in found["plugins"]} == dists
    assert_tests_pass(clean, packages, cwd=tmp_path / "tests-of-all")


def test_the_template_asks_nothing_where_nobody_can_answer(tmp_path: Path) -> None:
    [line] = [
        line
        for block in blocks_of(ROOT / "contrib" / "plugin-template" / "README.md")
        for line in block.code.splitlines()
        if line.startswith("copier copy --defaults")
    ]
    program, *words = shlex.split(line)
    assert (program, words[-1]) == ("copier", "../hotswap-rsync")
    output_of([sys.executable, "-m", program, *words[:-1], str(tmp_path / "made")], cwd=ROOT)
    assert (tmp_path / "made" / "hotswap_rsync" / "__init__.py").is_file()


@pytest.mark.parametrize("name", ["Rsync", "a--b", ""])
def test_a_name_that_is_no_dist_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="lower-case words"):
        generated("strategy", tmp_path / "package", name=name)
    assert not (tmp_path / "package").exists()


def generated(kind: str, to: Path, *, name: str | None = None) -> Path:
    """A package of the template, as a person makes it."""
    answers = ["--data", f"name={f'my-{kind}' if name is None else name}", "--data", f"kind={kind}"]
    template = str(ROOT / "contrib" / "plugin-template")
    copy = [sys.executable, "-m", "copier", "copy", "--quiet", "--defaults", *answers]
    output_of([*copy, template, str(to)])
    return to


def assert_clean(packages: Iterable[Path]) -> None:
    """ruff finds nothing in them, each with the rules of its own."""
    ruff, paths = [sys.executable, "-m", "ruff"], list(map(str, packages))
    output_of([*ruff, "check", *paths])
    output_of([*ruff, "format", "--check", *paths])


def assert_core_alone_serves(clean: Path, core: Path, cwd: Path) -> None:
    """It generates, and names the dist of what is not installed."""
    version = core.name.split("-")[1]
    shown = output_of([str(clean / "hotswap"), "--version"], cwd=cwd)
    told = json.loads(output_of([str(clean / "python"), "-c", CORE_ALONE], cwd=cwd))
    assert shown.split() == ["hotswap", version]
    assert Path(told["package"]).is_relative_to(clean.parent)
    standard = sysconfig.get_path("stdlib")
    own = [str(clean.parent), standard, f"{Path(standard).parent}/python"]
    assert [path for path in told["path"] if not path.startswith(tuple(own))] == []
    assert not [path for path in told["path"] if path.startswith(str(ROOT))]
    assert told["typed"] is True
    assert told["version"] == version
    assert told["tokens"] == 4
    assert set(told["refused"]) == {"disk", "rsync"}
    for strategy, (status, message) in told["refused"].items():
        assert status == 400
        assert f"load strategy '{strategy}' is not installed" in message
        assert f"pip install hotswap-{strategy}" in message


def assert_tests_pass(clean: Path, packages: Mapping[str, Path], *, cwd: Path) -> None:
    """Run the tests of all packages against what is installed, away from their sources.

    One run for all: their settings are the same, and torch is imported once.
    """
    settings = []
    for package in packages.values():
        shutil.copytree(package / "tests", cwd / "tests", dirs_exist_ok=True)
        shutil.copy(package / "pyproject.toml", cwd)
        parsed = tomllib.loads((cwd / "pyproject.toml").read_text(encoding="utf-8"))
        settings.append(parsed["tool"]["pytest"])
    assert settings == [settings[0]] * len(KINDS)
    output_of([str(clean / "python"), "-m", "pytest", "-q", "--junitxml=report.xml"], cwd=cwd)
    ended = defaultdict[str, Counter[str]](Counter)
    for case in ET.parse(cwd / "report.xml").iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        ended[case.attrib["classname"].split(".")[1]][kinds[0] if kinds else "passed"] += 1
    suites = {
        "test_strategy": StrategyTests,
        "test_hooks": PreReadTests,
        "test_engine": EngineTests,
    }
    assert ended.keys() == suites.keys()
    for module, suite in suites.items():
        counts = ended[module]
        assert counts.total() > len(suite.tests), module
        # The template's engine generates no text: the suite leaves those tests out.
        wanted = {"passed", "skipped"} if suite is EngineTests else {"passed"}
        assert counts.keys() == wanted, (module, counts)
