"""``make dist``: what a person installs is whole, typed and says which version it is."""

from __future__ import annotations

import email
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.process.built import PACKAGES, copy_sources, output_of

pytestmark = pytest.mark.process


@pytest.mark.long
def test_everything_is_built_typed_and_passes_twine(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    ready = Path(sys.prefix) / ".ready"
    made = output_of(["make", "-o", str(ready), f"VENV={sys.prefix}", "dist"], cwd=sources)
    built = sorted((sources / "dist").iterdir())
    wheels = [path for path in built if path.suffix == ".whl"]
    sdists = [path for path in built if path.name.endswith(".tar.gz")]
    assert made.count("PASSED") == len(built) == 2 * len(PACKAGES)
    assert "WARNING" not in made
    assert {told(wheel)["Name"] for wheel in wheels} == {str(told_by(p)["name"]) for p in PACKAGES}
    for package in PACKAGES:
        wanted = told_by(package)
        module = str(wanted["name"]).replace("-", "_")
        stem = f"{module}-{wanted['version']}"
        (wheel,) = [path for path in wheels if path.name.startswith(f"{stem}-")]
        assert_whole(wheel, module=module, package=package)
        assert told(wheel)["Version"] == wanted["version"]
        assert f"{stem}.tar.gz" in [path.name for path in sdists]
    for sdist in sdists:
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"LICENSE", "README.md", "pyproject.toml"} <= names, sdist.name


def assert_whole(wheel: Path, *, module: str, package: Path) -> None:
    """Every module of the package is in the wheel, its type marker and the licence too."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {str(path.relative_to(package)) for path in (package / module).rglob("*.py")}
    assert sources
    assert sources | {f"{module}/py.typed"} == {
        name for name in names if name.startswith(f"{module}/")
    }, wheel.name
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names), wheel.name
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {module}, wheel.name


def told(wheel: Path) -> Message:
    """A wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def told_by(package: Path) -> dict[str, object]:
    """The ``[project]`` table of a package's directory."""
    parsed = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, object] = parsed["project"]
    return project
