"""The plug-in template, and a clean environment that has the wheels and nothing of this tree."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.markdown_blocks import ROOT
from tests.process.built import build_wheel, copy_sources, output_of

# Fetching torch may take minutes where it is not in the index's cache yet.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

KINDS = ("strategy", "hook", "engine")

CORE_ALONE = """
import json
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
    plugins += [build_wheel(package, wheels) for package in packages.values()]

    clean = clean_environment(tmp_path / "clean")
    install(clean, "-c", str(ROOT / "constraints.txt"), f"{core}[testing]")
    assert_core_alone_serves(clean, core, tmp_path)

    # Without an index: what hotswap brings along is all that they need.
    install(clean, "--no-index", *map(str, plugins))
    found = json.loads(output_of([str(clean / "hotswap"), "plugins", "--json"], cwd=tmp_path))
    assert found["refused"] == []
    dists = {"hotswap-disk", *(f"hotswap-my-{kind}" for kind in KINDS)}
    assert {plugin["name"] for plugin in found["plugins"]} == dists
    for kind, package in packages.items():
        assert_tests_pass(clean, package, kind=kind, cwd=tmp_path / f"tests-of-{kind}")


@pytest.mark.parametrize("name", ["Rsync", "a--b", ""])
def test_a_name_that_is_no_dist_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="lower-case words"):
        generated("strategy", tmp_path / "package", name=name)
    assert not (tmp_path / "package").exists()


def generated(kind: str, to: Path, *, name: str | None = None) -> Path:
    """A package of the template, as a person makes it; ruff's own rules find nothing in it."""
    answers = ["--data", f"name={f'my-{kind}' if name is None else name}", "--data", f"kind={kind}"]
    template = str(ROOT / "contrib" / "plugin-template")
    copy = [sys.executable, "-m", "copier", "copy", "--quiet", "--defaults", *answers]
    output_of([*copy, template, str(to)])
    ruff = [sys.executable, "-m", "ruff"]
    output_of([*ruff, "check", "."], cwd=to)
    output_of([*ruff, "format", "--check", "."], cwd=to)
    return to


def clean_environment(at: Path) -> Path:
    """A new virtual environment; the directory of its programs."""
    output_of([sys.executable, "-m", "venv", "--without-pip", str(at)])
    return at / "bin"


def install(clean: Path, *arguments: str) -> None:
    """``pip install`` there. What is not imported need not be compiled."""
    pip = [sys.executable, "-m", "pip", "--python", str(clean / "python"), "install"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    output_of([*pip, *quiet, *arguments], limit_s=800)


def assert_core_alone_serves(clean: Path, core: Path, cwd: Path) -> None:
    """It generates, and names the dist of what is not installed."""
    version = core.name.split("-")[1]
    shown = output_of([str(clean / "hotswap"), "--version"], cwd=cwd)
    told = json.loads(output_of([str(clean / "python"), "-c", CORE_ALONE], cwd=cwd))
    assert shown.split() == ["hotswap", version]
    assert Path(told["package"]).is_relative_to(clean.parent)
    assert told["typed"] is True
    assert told["version"] == version
    assert told["tokens"] == 4
    assert set(told["refused"]) == {"disk", "rsync"}
    for strategy, (status, message) in told["refused"].items():
        assert status == 400
        assert f"load strategy '{strategy}' is not installed" in message
        assert f"pip install hotswap-{strategy}" in message


def assert_tests_pass(clean: Path, package: Path, *, kind: str, cwd: Path) -> None:
    """Run the tests of a package against what is installed, away from its sources."""
    cwd.mkdir()
    shutil.copytree(package / "tests", cwd / "tests")
    shutil.copy(package / "pyproject.toml", cwd)
    printed = output_of([str(clean / "pytest"), "-q"], cwd=cwd)
    assert " passed" in printed
    # The template's engine generates no text: the suite leaves those tests out.
    assert ("skipped" in printed) == (kind == "engine"), printed
