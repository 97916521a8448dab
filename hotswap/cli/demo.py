"""``hotswap demo``: the demo of the source tree, where there is one."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import hotswap
from hotswap.cli.codes import ExitCode
from hotswap.cli.output import fail, print_json
from hotswap.errors import HotswapError

__all__ = ["run_demo"]

_PROGRAM = Path("contrib", "demo", "__main__.py")

# What the demo needs besides hotswap itself, by the name of the dist.
_NEEDED = {
    "accelerate": "accelerate",
    "gguf": "gguf",
    "hotswap_disk": "hotswap-disk",
    "rich": "rich",
    "transformers": "transformers",
}


def run_demo(options: argparse.Namespace) -> int:
    """Run it to its end; code 1 when it is not here, or did not hold."""
    if options.model is not None and not Path(options.model).is_dir():
        missing = f"--model {options.model} is no directory, wanted that of a checkpoint"
        return fail("demo", HotswapError(missing), as_json=options.json)
    root = _source_tree()
    if root is None:
        return fail("demo", HotswapError(_not_here()), as_json=options.json)
    lacking = [dist for module, dist in _NEEDED.items() if find_spec(module) is None]
    if lacking:
        lacks = HotswapError(
            f"{', '.join(lacking)} not installed, wanted for the demo; run make setup in {root}, "
            f"or pip install {' '.join(lacking)}"
        )
        return fail("demo", lacks, as_json=options.json)
    model = [] if options.model is None else ["--model", str(Path(options.model).resolve())]
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "contrib.demo", *model],
        cwd=root,
        # With --json stdout has the result alone.
        stdout=sys.stderr if options.json else None,
        check=False,
    )
    if options.json:
        seconds = round(time.monotonic() - started, 1)
        print_json({"held": ended.returncode == 0, "seconds": seconds, "folder": f"{root}/.demo"})
    return ExitCode.DONE if ended.returncode == 0 else ExitCode.FAILED


def _source_tree() -> Path | None:
    """The checkout that hotswap runs from, or that is the current directory."""
    beside = Path(hotswap.__file__).resolve().parents[1]
    return next((root for root in (beside, Path.cwd()) if (root / _PROGRAM).is_file()), None)


def _not_here() -> str:
    return (
        f"no {_PROGRAM} beside hotswap or in the current directory; the demo is in hotswap's "
        "source tree, which a wheel does not have: get the source and run 'make demo' in it. "
        "With two checkpoints A and B of one model, this install can do the same by hand: "
        "'hotswap serve --model A --allow-weight-update' (needs hotswap-disk), then "
        "'hotswap watch' in a second terminal and 'hotswap update B' in a third"
    )
