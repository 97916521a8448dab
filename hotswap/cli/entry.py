"""Which command was asked for, and what has to be done before any of them."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from hotswap.cli.codes import ExitCode
from hotswap.cli.output import OutputLost, complain, fail, wants_json, wrong_usage
from hotswap.cli.parser import parser_of
from hotswap.cli.unknown_flags import meant_by, no_command, refusal_in
from hotswap.command_line import hide_keys, is_key_flag

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (``hotswap.cli.codes``)."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = sys.argv[1:] if argv is None else list(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be text, and a terminal need not have every letter.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments, as_json=wants_json(arguments))
    except OutputLost as lost:
        if not lost.by_reader:
            complain(_command_in(arguments), str(lost))
        if sys.stdout is not None:
            # The exit must not try to write the rest.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED


def _run(arguments: Sequence[str], *, as_json: bool) -> int:
    """Raises: OutputLost; SystemExit for what argparse does not take, or has answered itself."""
    try:
        hide_keys()
    except OSError as error:
        return wrong_usage(None, _unsafe_key(error), as_json=as_json)
    command = _command_in(arguments)
    before = takewhile(lambda word: word.startswith("-"), arguments)
    if any(map(is_key_flag, before if command == "serve" else arguments)):
        # argparse would repeat the key in its error.
        wanted = "keys are flags of serve, wanted hotswap serve --api-key"
        return wrong_usage(None, wanted, as_json=as_json)
    if command == "serve":
        from hotswap.cli.serve import run_serve

        return _ended("serve", lambda: run_serve(arguments), as_json=as_json)
    parser = parser_of(None, as_json=as_json)
    if command is not None and (meant := meant_by(command)):
        parser.error(meant)
    options, unknown = parser.parse_known_args(arguments)
    if unknown and command is not None:
        said = refusal_in(command, unknown)
        told = f"hotswap {command}: {said}" if as_json else said
        # As argparse ends what it does not take.
        sys.exit(wrong_usage(command, told, as_json=as_json))
    if unknown and set(unknown) == {"--json"}:
        return wrong_usage(None, no_command(), as_json=True)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.print_help()
        return ExitCode.USAGE
    run = _run_of(options.command)
    return _ended(options.command, lambda: run(options), as_json=options.json)


def _command_in(arguments: Sequence[str]) -> str | None:
    return next((word for word in arguments if not word.startswith("-")), None)


def _ended(command: str, run: Callable[[], int], *, as_json: bool) -> int:
    try:
        return run()
    except KeyboardInterrupt as error:
        return fail(command, error, as_json=as_json)


def _unsafe_key(error: OSError) -> str:
    return (
        f"a key on the command line would stay readable to every user of this machine ({error}); "
        "give it as HOTSWAP_API_KEY or HOTSWAP_ADMIN_API_KEY"
    )


def _run_of(command: str) -> Callable[[argparse.Namespace], int]:
    """What runs ``command``; imported only now, since most need few of hotswap's modules."""
    from hotswap.cli.check import run_check
    from hotswap.cli.commit import run_commit
    from hotswap.cli.completion import run_completion
    from hotswap.cli.demo import run_demo
    from hotswap.cli.inspect import run_inspect
    from hotswap.cli.plugins import run_plugins
    from hotswap.cli.publish import run_prune, run_publish
    from hotswap.cli.pull import run_materialize, run_pull
    from hotswap.cli.push import run_push
    from hotswap.cli.state import run_state
    from hotswap.cli.update import run_update
    from hotswap.cli.verify import run_verify
    from hotswap.cli.watch import run_watch

    runs: Mapping[str, Callable[[argparse.Namespace], int]] = {
        "check": run_check,
        "commit": run_commit,
        "completion": run_completion,
        "demo": run_demo,
        "inspect": run_inspect,
        "plugins": run_plugins,
        "prune": run_prune,
        "publish": run_publish,
        "materialize": run_materialize,
        "pull": run_pull,
        "push": run_push,
        "state": run_state,
        "update": run_update,
        "verify": run_verify,
        "watch": run_watch,
    }
    return runs[command]
