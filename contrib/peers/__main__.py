"""``python -m contrib.peers [--slime CLONE] [--miles CLONE] [--receiver FILE]``: see README.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

from contrib.peers.checkpoints import VERSIONS, Tensors, difference, publish, states, write_base
from contrib.peers.sources import added_file, commit_of, read
from contrib.peers.stand_ins import PUBLISHERS
from hotswap.stream import pull

__all__ = ["main"]

_PATCH = "docker/patch/latest/sglang-pull_weights.patch"
_RECEIVER = "/srt/weight_sync/local_checkpoint.py"
_RANKS = 2
_KINDS = list(product(("xor", "overwrite"), ("xxh3-128", "blake3", "adler32")))
_TIMEOUT_S = 120.0

_Check = Callable[[Path, Sequence[Tensors], str, str], str | None]


def main() -> int:
    """Exit status: 0 when every check that could run passed, 1 otherwise."""
    arguments = _arguments()
    failed = 0
    for name, check in _checks(arguments):
        for encoding, checksum in _KINDS:
            with tempfile.TemporaryDirectory(prefix="peers-") as folder:
                wrong = check(Path(folder), states(), encoding, checksum)
            print(f"{name}, {encoding}, {checksum}: {wrong or 'same bytes'}", flush=True)
            failed += wrong is not None
    for name in ("slime", "miles"):
        if getattr(arguments, name) is None:
            print(f"{name}: NOT RUN, no clone was given")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m contrib.peers", description=__doc__)
    parser.add_argument("--slime", type=Path, help="a clone of THUDM/slime")
    parser.add_argument("--miles", type=Path, help="a clone of radixark/miles")
    parser.add_argument("--receiver", type=Path, action="append", default=[], metavar="FILE")
    return parser.parse_args()


def _checks(arguments: argparse.Namespace) -> Iterator[tuple[str, _Check]]:
    if arguments.slime is not None:
        receiver = added_file(read(arguments.slime, _PATCH), _RECEIVER)
        named = f"receiver of slime {commit_of(arguments.slime)}"
        yield named, partial(_received, receiver)
    for file in arguments.receiver:
        yield f"receiver {file}", partial(_received, file.read_text())
    for name in PUBLISHERS:
        clone = getattr(arguments, name)
        if clone is not None:
            yield f"publisher of {name} {commit_of(clone)}", partial(_published, name, clone)


def _received(
    receiver: str, root: Path, all_states: Sequence[Tensors], encoding: str, checksum: str
) -> str | None:
    """Our stream, their receiver: what is wrong, None when every version has its bytes."""
    base = write_base(root / "base", all_states[0])
    publish(root / "source", all_states, encoding=encoding, checksum_format=checksum)
    file = root / "receiver.py"
    file.write_text(receiver)
    for version in range(VERSIONS + 1):
        arguments = map(str, (file, root / "local", base, root / "source", version))
        error = _run("contrib.peers.run_receiver", *arguments)
        wrong = error or difference(root / "local", all_states[version])
        if wrong is not None:
            return f"version {version}: {wrong}"
    return None


def _published(
    name: str,
    clone: Path,
    root: Path,
    all_states: Sequence[Tensors],
    encoding: str,
    checksum: str,
) -> str | None:
    """Their stream, our reader: version by version, and all of them at once."""
    base = write_base(root / "base", all_states[0])
    PUBLISHERS[name].lay_out(clone, root / "tree")
    spec = {
        "tree": str(root / "tree"),
        "module": PUBLISHERS[name].module,
        "base": str(base),
        "source": str(root / "source"),
        "encoding": encoding,
        "checksum": checksum,
        "world": _RANKS,
        "store": str(root / "store"),
    }
    error = _run_ranks(spec)
    if error is not None:
        return error
    for steps, local in (
        (range(VERSIONS + 1), root / "one by one"),
        ((0, VERSIONS), root / "folded"),
    ):
        for version in steps:
            pull(local, root / "source", version, base_dir=base)
            wrong = difference(local, all_states[version])
            if wrong is not None:
                return f"{local.name}, version {version}: {wrong}"
    return None


def _run_ranks(spec: dict[str, object]) -> str | None:
    """What the first rank that failed said; the other one cannot go on without it."""
    messages = [json.dumps(spec | {"rank": rank}) for rank in range(_RANKS)]
    with ThreadPoolExecutor(_RANKS) as pool:
        errors = pool.map(partial(_run, "contrib.peers.run_publisher"), messages)
        return next((error for error in errors if error is not None), None)


def _run(module: str, *arguments: str) -> str | None:
    """Why the module failed; None when it did not. It is ended at the time-out."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True, timeout=_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        return error.stderr or str(error)
    except subprocess.TimeoutExpired as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
