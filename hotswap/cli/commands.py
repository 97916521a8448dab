"""The commands as data: the parser, the completions and the documents' test read it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from hotswap._version import __version__
from hotswap.options import Option

__all__ = ["COMMANDS", "CliCommand", "Flag", "parser_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag, or the argument of a command (a name without dashes).

    Without ``metavar`` it is a switch. ``completes`` is ``directory``, ``command`` or
    nothing; ``negative`` adds the ``--no-`` form.
    """

    name: str
    help: str
    metavar: str | None = None
    type: type = str
    default: object = None
    choices: tuple[str, ...] = ()
    completes: str = ""
    negative: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CliCommand:
    """One command of ``hotswap``; the flags of ``serve`` come from its settings."""

    name: str
    help: str
    flags: tuple[Flag, ...] = ()


_JSON = Flag(name="--json", help="one JSON object on stdout, for programs")
_MODES = ("abort", "retract", "in_place", "wait")
_SERVER = (
    Flag(
        name="--url",
        metavar="URL",
        help="where the server is; HOTSWAP_URL, else http://127.0.0.1:30000",
    ),
    Flag(
        name="--server",
        metavar="KIND",
        choices=("auto", "hotswap", "sglang"),
        default="auto",
        help="whose server it is; auto asks it",
    ),
)
_THREADS = Flag(
    name="--threads",
    metavar="N",
    type=int,
    help="threads that share out the tensors; one a processor, a pull at most 8",
)
_LOCK = Flag(
    name="--lock-timeout-s",
    metavar="S",
    type=float,
    default=600.0,
    help="seconds to wait for another pull or reader of the local checkpoint",
)
_BASE_KNOWN = Flag(
    name="--base",
    metavar="DIR",
    help="version 0 of a source: the checkpoint that its first delta builds on",
    completes="directory",
)
_WITHIN = Flag(
    name="--within-s",
    metavar="S",
    type=float,
    default=600.0,
    help="seconds for all of it, retries included",
)

COMMANDS: tuple[CliCommand, ...] = (
    CliCommand(name="serve", help="serve a checkpoint over HTTP"),
    CliCommand(
        name="demo",
        help="swap a real model's weights under load, and prove it",
        flags=(
            Flag(
                name="--model",
                metavar="DIR",
                help="a checkpoint of your own",
                completes="directory",
            ),
            _JSON,
        ),
    ),
    CliCommand(
        name="update",
        help="load a checkpoint directory into a running server",
        flags=(
            Flag(name="source", help="a directory that the server can read", completes="directory"),
            *_SERVER,
            Flag(name="--weight-version", metavar="LABEL", help="what to call the new weights"),
            Flag(name="--token-step", metavar="N", type=int, help="the training step"),
            Flag(
                name="--pause-mode",
                metavar="MODE",
                choices=_MODES,
                help="how requests in flight are met; retract, and abort on SGLang's servers",
            ),
            Flag(
                name="--flush-cache",
                default=True,
                negative=True,
                help="drop cached prefixes (the default)",
            ),
            Flag(
                name="--fenced",
                negative=True,
                help="pause, flush, update and continue as four requests; the default on "
                "SGLang's servers",
            ),
            _WITHIN,
            _JSON,
        ),
    ),
    CliCommand(
        name="state",
        help="one look at a running server",
        flags=(
            *_SERVER,
            Flag(name="--wait", metavar="S", type=float, help="until it is ready, S seconds long"),
            _JSON,
        ),
    ),
    CliCommand(
        name="watch",
        help="a live view of a running server",
        flags=(
            *_SERVER,
            Flag(
                name="--every-s",
                metavar="S",
                type=float,
                default=1.0,
                help="seconds between two looks",
            ),
            Flag(name="--times", metavar="N", type=int, help="end after N looks"),
            _JSON,
        ),
    ),
    CliCommand(
        name="publish",
        help="publish a checkpoint directory as the next version of a stream",
        flags=(
            Flag(name="directory", help="the checkpoint", completes="directory"),
            Flag(
                name="--to",
                metavar="SOURCE",
                help="where versions are published",
                completes="directory",
                required=True,
            ),
            Flag(
                name="--base",
                metavar="DIR",
                help="version 0: the checkpoint that servers are started with; without it the "
                "first version is a full one",
                completes="directory",
            ),
            Flag(
                name="--run",
                metavar="NAME",
                default="publish",
                help="whose stream it is; a source of another run is refused (publish)",
            ),
            Flag(
                name="--encoding",
                metavar="NAME",
                choices=("gap", "xor", "overwrite"),
                default="gap",
                help="how changes are written (gap)",
            ),
            Flag(
                name="--anchor-every",
                metavar="N",
                type=int,
                default=0,
                help="every N-th version is a full one; 0 is none (0)",
            ),
            Flag(
                name="--aggregate-every",
                metavar="N",
                type=int,
                default=0,
                help="every N-th version rewrites aggregate/; 0 is none (0)",
            ),
            Flag(
                name="--keep",
                metavar="N",
                type=int,
                help="then remove what none of the newest N versions needs",
            ),
            Flag(
                name="--threads",
                metavar="N",
                type=int,
                help="threads that share out the tensors; one a processor, at most 8",
            ),
            _JSON,
        ),
    ),
    CliCommand(
        name="prune",
        help="remove versions that no chain needs any more",
        flags=(
            Flag(name="source", help="where versions are published", completes="directory"),
            Flag(
                name="--keep",
                metavar="N",
                type=int,
                help="the newest N versions stay, and all that leads to them",
                required=True,
            ),
            Flag(name="--dry-run", help="only say what would be removed"),
            _JSON,
        ),
    ),
    CliCommand(name="plugins", help="list plug-ins, loaded and refused", flags=(_JSON,)),
    CliCommand(
        name="check",
        help="say whether a directory is a loadable checkpoint, and why not",
        flags=(
            Flag(name="directory", help="the checkpoint", completes="directory"),
            Flag(
                name="--model",
                metavar="DIR",
                help="the checkpoint that is served; without it, whether it can be served itself",
                completes="directory",
            ),
            _JSON,
        ),
    ),
    CliCommand(
        name="pull",
        help="bring a local checkpoint to a published version; no server is needed",
        flags=(
            Flag(
                name="--source",
                metavar="DIR",
                help="where versions are published",
                completes="directory",
                required=True,
            ),
            Flag(
                name="--local",
                metavar="DIR",
                help="the local checkpoint, which belongs to pulls",
                completes="directory",
                required=True,
            ),
            Flag(
                name="--base",
                metavar="DIR",
                help="version 0: the checkpoint that training began with",
                completes="directory",
                required=True,
            ),
            Flag(name="--target", metavar="N", type=int, help="the version", required=True),
            _THREADS,
            _LOCK,
            Flag(
                name="--custom-pull-weights-pre-read-hook",
                metavar="PATH",
                help="import path of a function (source_dir, target_version), called before the "
                "source is looked at",
            ),
            _JSON,
        ),
    ),
    CliCommand(
        name="inspect",
        help="list published versions, or say what a local checkpoint holds",
        flags=(
            Flag(name="directory", help="a source or a local checkpoint", completes="directory"),
            _BASE_KNOWN,
            Flag(
                name="--density",
                default=True,
                negative=True,
                help="read every delta, and say how much it changes (the default)",
            ),
            _JSON,
        ),
    ),
    CliCommand(
        name="verify",
        help="check every byte of a source or a local checkpoint against every checksum",
        flags=(
            Flag(name="directory", help="a source or a local checkpoint", completes="directory"),
            _BASE_KNOWN,
            _THREADS,
            _LOCK,
            _JSON,
        ),
    ),
    CliCommand(
        name="completion",
        help="print a completion script for a shell",
        flags=(Flag(name="shell", choices=("bash", "zsh", "fish"), help="which shell"),),
    ),
)


def parser_of(serve_options: Iterable[Option] | None) -> argparse.ArgumentParser:
    """The parser; ``serve`` has its flags only when the plug-ins' are known."""
    parser = argparse.ArgumentParser(
        prog="hotswap",
        description="Replace the weights of a live inference server without a restart.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hotswap {__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        added = parsers.add_parser(command.name, help=command.help, allow_abbrev=False)
        for flag in command.flags:
            _add(added, flag)
        if command.name == "serve" and serve_options is not None:
            from hotswap.settings import add_flags

            add_flags(added, serve_options)
            add_serve_json(added)
    return parser


def add_serve_json(parser: argparse.ArgumentParser) -> None:
    """``serve --json`` is ``serve --log-format json``: what a server prints is its log."""
    parser.add_argument(
        "--json",
        dest="log_format",
        action="store_const",
        const="json",
        help="the same as --log-format json",
    )


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    if flag.metavar is None and flag.name.startswith("--"):
        action = argparse.BooleanOptionalAction if flag.negative else "store_true"
        default = flag.default if flag.negative else False
        parser.add_argument(flag.name, action=action, default=default, help=flag.help)
        return
    argument = parser.add_argument(
        flag.name,
        type=flag.type,
        default=flag.default,
        choices=flag.choices or None,
        help=flag.help,
    )
    argument.metavar = flag.metavar
    # A flag is optional to argparse unless it is told, an argument of a command never is.
    argument.required = flag.required or not flag.name.startswith("--")
