"""Reading files of a public repository that somebody has a copy of: a checkout, or a git directory.

What is read is written below a temporary directory and run there; nothing of it is kept.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["added_file", "commit_of", "read"]


def read(repository: Path, path: str) -> str:
    """The text of ``path`` at HEAD. Raises: FileNotFoundError."""
    shown = _git(repository, "show", f"HEAD:{path}")
    if shown is None:
        raise FileNotFoundError(f"{repository}: HEAD has no {path}; give a clone of the repository")
    return shown


def commit_of(repository: Path) -> str:
    """The commit that is read, short."""
    return (_git(repository, "rev-parse", "--short=12", "HEAD") or "unknown").strip()


def added_file(patch: str, name: str) -> str:
    """The text of the new file whose path ends in ``name``, which ``patch`` adds.

    Raises: FileNotFoundError.
    """
    for part in patch.split("\ndiff --git ")[1:]:
        head, _, body = part.partition("\n+++ ")
        path, _, hunks = body.partition("\n")
        if "\nnew file mode" in head and path.endswith(name):
            lines = (line for line in hunks.split("\n") if line.startswith("+"))
            return "".join(f"{line[1:]}\n" for line in lines)
    raise FileNotFoundError(f"the patch adds no {name}; give a repository whose patch does")


def _git(repository: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(repository), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
