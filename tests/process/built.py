"""The project's sources copied to a place of their own, and what is built from them.

Building writes ``*.egg-info`` beside the sources, and other tests read those of the
checkout meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.markdown_blocks import ROOT
from tests.untraced import UNTRACED

__all__ = ["PACKAGES", "build_wheel", "copy_sources", "output_of"]

PACKAGES = (ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml")))
"""The directories of everything that is released: the core, then each plug-in."""

_LEFT_OUT = shutil.ignore_patterns("*.egg-info", "__pycache__", "build", "dist", ".*")


def copy_sources(to: Path) -> Path:
    """What building needs: packages, plug-ins, their metadata and the Makefile."""
    to.mkdir()
    for name in ("hotswap", "plugins"):
        shutil.copytree(ROOT / name, to / name, ignore=_LEFT_OUT)
    for name in ("LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, to / name)
    return to


def build_wheel(sources: Path, into: Path) -> Path:
    """Build one package as its ``pyproject.toml`` says, in this environment; the wheel's path.

    Its backend is called as a build tool calls it, in a process of its own.
    """
    settings = tomllib.loads((sources / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["build-system"]["build-backend"] == "setuptools.build_meta"
    into.mkdir(exist_ok=True)
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    before = set(into.glob("*.whl"))
    output_of([sys.executable, "-c", code, str(into)], cwd=sources)
    (wheel,) = set(into.glob("*.whl")) - before
    return wheel


def output_of(command: Sequence[str], *, cwd: Path | None = None, limit_s: float = 240.0) -> str:
    """Run a command that must succeed; everything that it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **UNTRACED},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout
