"""A virtual environment that has what a wheel asks for, and nothing of this tree.

Rules:

* Only what the wheel declares is there: of this environment's packages those that the wheel
  requires, those that these require, and so on.
* Their files are linked and not unpacked again: torch alone would take most of a minute.
* Wheels are installed by pip, which checks what they require, and asks no index.
"""

from __future__ import annotations

import email
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.process.built import output_of

__all__ = ["clean_environment", "install"]


def clean_environment(at: Path, *, wheel: Path, extra: str) -> Path:
    """Make the environment ``at`` for ``wheel`` with its ``extra``; the directory of programs.

    The wheel itself is not in it yet.
    """
    output_of([sys.executable, "-m", "venv", "--without-pip", str(at)])
    site = Path(sysconfig.get_path("purelib", vars={"base": str(at)}))
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        asked = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    for dist in _needed(asked, extra):
        _link(dist, site)
    return at / "bin"


def install(clean: Path, *wheels: str) -> None:
    """``pip install`` there, without an index. What is not imported need not be compiled."""
    pip = [sys.executable, "-m", "pip", "--python", str(clean / "python"), "install"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-index"]
    output_of([*pip, *quiet, *wheels])


def _needed(asked: Iterable[str], extra: str) -> Iterator[Distribution]:
    """The installed packages that the requirements lead to. Raises: PackageNotFoundError."""
    seen: set[tuple[str, str]] = set()
    given: set[str] = set()
    waiting = [(Requirement(text), extra) for text in asked]
    while waiting:
        requirement, under = waiting.pop()
        marker = requirement.marker
        name = canonicalize_name(requirement.name)
        if marker is not None and not marker.evaluate({"extra": under}):
            continue
        assert name != "hotswap", "the core asks for itself: an extra of it names another"
        dist = distribution(name)
        if name not in given:
            given.add(name)
            yield dist
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in dist.requires or ()]


def _link(dist: Distribution, site: Path) -> None:
    files = dist.files
    assert files, f"{dist.name} does not say which files it has"
    for file in files:
        if file.parts[0] != "..":  # programs are called by their modules
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(str(dist.locate_file(file)), target)
