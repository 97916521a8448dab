"""``python -m contrib.bench [name ...]``: run benchmarks, print one table, judge it."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from contrib.bench import (
    generation_engine,
    generation_http,
    generation_swap,
    health,
    memory,
    pull,
    pull_load,
    pull_log,
    push_bucket,
    push_native,
    served,
    sparse_commit,
    store,
    stream_wire,
    token_gap,
    updates,
)
from contrib.bench.results import Report, table

_BENCHMARKS: Mapping[str, Callable[..., Report]] = {
    "updates": updates.run,
    "token_gap": token_gap.run,
    "health": health.run,
    "memory": memory.run,
    "generation_engine": generation_engine.run,
    "generation_http": generation_http.run,
    "generation_swap": generation_swap.run,
    "pull": pull.run,
    "pull_load": pull_load.run,
    "pull_log": pull_log.run,
    "push_native": push_native.run,
    "push_bucket": push_bucket.run,
    "stream_wire": stream_wire.run,
    "sparse_commit": sparse_commit.run,
    "store": store.run,
    "served": served.run,
}


def main() -> int:
    """Exit status: 0 when every target is met, 1 otherwise."""
    arguments = _arguments()
    # A collection among torch's objects takes a quarter of a second, during which a
    # client that measures would see no token come.
    gc.freeze()
    reports = []
    for name in chosen(arguments.names):
        print(f"bench: {name} ...", file=sys.stderr, flush=True)
        report = _BENCHMARKS[name](rounds=arguments.rounds)
        reports.append(report)
        print(json.dumps({name: report.configuration}, indent=1), flush=True)
    print(table(reports))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([one.as_json() for one in reports], indent=1) + "\n")
    missed = [f"{one.name} {m.name}" for one in reports for m in one.measures if not m.passed]
    for name in missed:
        print(f"bench: target missed: {name}", file=sys.stderr)
    return 1 if missed else 0


def chosen(names: Sequence[str]) -> list[str]:
    """The benchmarks that ``names`` name; ``generation``, being none, is all that begin with it.

    None names all. Raises: ValueError for a name of none.
    """
    found: list[str] = []
    for name in names or _BENCHMARKS:
        named = [one for one in _BENCHMARKS if one.startswith(f"{name}_")]
        if name in _BENCHMARKS:
            named = [name]
        if not named:
            raise ValueError(f"no benchmark {name}; there are {', '.join(_BENCHMARKS)}")
        found += [one for one in named if one not in found]
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m contrib.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(_BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=7, help="runs of each kind (7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample there")
    arguments = parser.parse_args()
    try:
        chosen(arguments.names)
    except ValueError as error:
        parser.error(str(error))
    return arguments


if __name__ == "__main__":
    sys.exit(main())
