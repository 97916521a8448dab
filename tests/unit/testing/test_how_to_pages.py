"""The how-to pages for plug-in authors: their files are written out, and their tests run.

Beside them two strategies with a planted fault, which the suite has to find.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from hotswap.testing import EngineTests, PreReadTests, StrategyTests
from tests.markdown_blocks import ROOT, blocks_of
from tests.untraced import UNTRACED

PAGES = {
    "hotswap_npz": "write-a-strategy.md",
    "hotswap_untar": "write-a-pre-read-hook.md",
    "hotswap_toy": "write-an-engine.md",
}
READABLE = "test_the_source_is_readable_afterwards"
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-o", "junit_family=xunit1")
LATE = {
    "        yield NpzStage(await anyio.to_thread.run_sync(read, update.source))\n": (
        "        stage = NpzStage(await anyio.to_thread.run_sync(read, update.source))\n"
        "        stage.source = update.source\n"
        "        yield stage\n"
    ),
    "in self.tensors.items():\n            yi": "in read(self.source).items():\n            yi",
}
CACHED = {
    "class NpzStrategy:\n": "class NpzStrategy:\n    last = None\n\n",
    "        yield NpzStage(await anyio.to_thread.run_sync(read, update.source))\n": (
        "        stage = NpzStage(await anyio.to_thread.run_sync(read, update.source))\n"
        "        yield NpzStrategy.last or stage\n"
        "        NpzStrategy.last = NpzStage({'probe': stage.tensors.get('probe')}) "
        "if 'probe' in stage.tensors else None\n"
    ),
}
OUTSIDE = """
import pytest

from hotswap.testing import Hidden, PreReadTests

SHOWN = set()


@pytest.fixture
def hide(tmp_path):
    return lambda: Hidden(source="one", is_readable=lambda: "one" in SHOWN)


class TestOutside(PreReadTests):
    @pytest.fixture
    def pre_read(self):
        async def show(source):
            SHOWN.add(source)

        return show


class TestForgotten(PreReadTests):
    pass
"""
FAULTS = {
    "hotswap_npz_late": (LATE, "test_nothing_is_opened_while_weights_are_written"),
    "hotswap_npz_cached": (CACHED, "test_another_source_is_another_checkpoint"),
}


def files_of(page: str) -> dict[str, str]:
    blocks = blocks_of(ROOT / "docs" / "how-to" / page)
    return {
        block.expected: block.code
        for block in blocks
        if block.directive == "file" and block.expected is not None
    }


def written(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def faulty(module: str, changes: Mapping[str, str]) -> dict[str, str]:
    """The files of the strategy under another name, changed."""
    files = files_of(PAGES["hotswap_npz"])
    code = files["hotswap_npz.py"]
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    tests = files["test_npz.py"].replace("from hotswap_npz import", f"from {module} import")
    return {f"{module}.py": code, f"test_{module}.py": tests}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ET.ElementTree[ET.Element]:
    """What one run of pytest over all of them tells."""
    root = tmp_path_factory.mktemp("pages")
    folders = {module: written(root / module, files_of(page)) for module, page in PAGES.items()}
    for module, (changes, _) in FAULTS.items():
        folders[module] = written(root / module, faulty(module, changes))
    folders["test_outside"] = written(root / "outside", {"test_outside.py": OUTSIDE})
    (root / "pytest.ini").write_text("[pytest]\n")
    path = root / "report.xml"
    paths = os.pathsep.join(map(str, folders.values()))
    # Of the faulty ones only the tests that have to find the fault: this takes a while.
    some = {*FAULTS, "test_outside"}
    of_these = [READABLE, *(test for _, test in FAULTS.values())]
    wanted = f"not ({' or '.join(some)}) or {' or '.join(of_these)}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={path}", "-k", wanted, "."],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **UNTRACED},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert path.exists(), done.stdout + done.stderr
    return ET.parse(path)


@pytest.fixture(scope="module")
def outcomes(report: ET.ElementTree[ET.Element]) -> Mapping[str, Mapping[str, str]]:
    """Module -> test -> passed, failure, error or skipped."""
    found = defaultdict[str, dict[str, str]](dict)
    for case in report.iter("testcase"):
        module = case.attrib["classname"].split(".")[0]
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[module][case.attrib["name"]] = kinds[0] if kinds else "passed"
    return found


@pytest.mark.parametrize(
    ("module", "suite"),
    [
        ("hotswap_npz", StrategyTests),
        ("hotswap_untar", PreReadTests),
        ("hotswap_toy", EngineTests),
    ],
)
def test_what_a_page_makes_passes_its_suite(
    outcomes: Mapping[str, Mapping[str, str]],
    module: str,
    suite: type[StrategyTests] | type[PreReadTests] | type[EngineTests],
) -> None:
    ran = outcomes[module]
    assert ran.keys() == set(suite.tests)
    assert {name: end for name, end in ran.items() if end not in ("passed", "skipped")} == {}
    assert list(ran.values()).count("passed") >= 10


@pytest.mark.parametrize("module", FAULTS)
def test_the_suite_finds_a_fault_that_is_planted(
    outcomes: Mapping[str, Mapping[str, str]], module: str
) -> None:
    _, test = FAULTS[module]
    assert outcomes[module][test] == "failure"


def test_a_fixture_may_be_outside_the_class_and_a_forgotten_one_is_asked_for(
    report: ET.ElementTree[ET.Element],
) -> None:
    cases = {
        case.attrib["classname"].rpartition(".")[2]: case
        for case in report.iter("testcase")
        if case.attrib["name"] == READABLE
    }
    assert not list(cases["TestOutside"])
    (error,) = cases["TestForgotten"]
    assert error.tag == "error"
    assert (
        "PreReadTests wants the fixture pre_read and the class has none; write a method "
        "pre_read(self) with @pytest.fixture above it that gives the plug-in's hotswap_pre_read"
    ) in (error.attrib["message"] + (error.text or ""))


def test_the_strategy_has_fewer_than_40_lines() -> None:
    code = files_of(PAGES["hotswap_npz"])["hotswap_npz.py"]
    assert len(code.splitlines()) < 40


@pytest.mark.parametrize("module", PAGES)
def test_the_package_of_a_page_declares_its_entry_point(module: str) -> None:
    project = tomllib.loads(files_of(PAGES[module])["pyproject.toml"])
    name = module.removeprefix("hotswap_")
    assert project["project"]["entry-points"]["hotswap"] == {name: module}
    assert project["project"]["name"] == f"hotswap-{name}"
    assert project["tool"]["setuptools"]["py-modules"] == [module]


@pytest.mark.parametrize("suite", [StrategyTests, EngineTests, PreReadTests])
def test_every_test_of_a_suite_is_in_the_reference(
    suite: type[StrategyTests] | type[PreReadTests] | type[EngineTests],
) -> None:
    page = (ROOT / "docs" / "reference" / "testing.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("| `test_")]
    for name in suite.tests:
        text = " ".join((inspect.getdoc(getattr(suite, name)) or "").split())
        assert text
        assert f"| `{name}` | {text} |" in shown
    assert len(shown) == sum(len(each.tests) for each in (StrategyTests, EngineTests, PreReadTests))
