"""The commands as data: the parser, the completions and the documents' test read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hotswap.cli.values import Seconds, Whole, not_empty, on_this_machine

__all__ = ["COMMANDS", "CliCommand", "Flag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag, or the argument of a command (a name without dashes).

    Without ``metavar`` it is a switch. ``type`` makes its value of a text, or refuses it.
    ``completes`` is ``directory``, ``command`` or
    nothing; ``negative`` adds the ``--no-`` form.
    """

    name: str
    help: str
    metavar: str | None = None
    type: Callable[[str], object] = not_empty
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


_COUNT, _AT_LEAST_ONE, _THREAD_COUNT = Whole(least=0), Whole(least=1), Whole(least=1, most=1024)
_JSON = Flag(name="--json", help="one JSON object on stdout, for programs")
_MODES = ("abort", "retract", "in_place", "wait")


def _directory(name: str, told: str, *, required: bool = False) -> Flag:
    """A directory on this machine, as a flag or as the argument of a command."""
    return replace(_place(name, told, required=required), type=on_this_machine)


def _place(name: str, told: str, *, required: bool = False) -> Flag:
    """The same; a server or an object store may have it."""
    return Flag(
        name=name,
        metavar="DIR" if name.startswith("--") else None,
        help=told,
        completes="directory",
        required=required,
    )


def _number(
    name: str, told: str, of: Whole, *, default: int | None = None, required: bool = False
) -> Flag:
    return Flag(name=name, metavar="N", type=of, help=told, default=default, required=required)


def _seconds(name: str, told: str, of: Seconds, *, default: float | None = None) -> Flag:
    return Flag(name=name, metavar="S", type=of, help=told, default=default)


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
_LABELS = (
    Flag(name="--weight-version", metavar="LABEL", help="what to call the new weights"),
    _number("--token-step", "the training step", _COUNT),
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
)
_WITHIN = _seconds(
    "--within-s", "seconds for all of it, retries included", Seconds(), default=600.0
)
_THREADS = _number(
    "--threads", "threads that share out the tensors; one a processor, at most 8", _THREAD_COUNT
)
_VERIFYING_THREADS = _number(
    "--threads", "threads that share out the tensors; one a processor", _THREAD_COUNT
)
_LOCK = _seconds(
    "--lock-timeout-s",
    "seconds to wait for another pull or reader of the local checkpoint",
    Seconds(zero=True),
    default=600.0,
)
_BASE_KNOWN = _directory(
    "--base", "version 0 of a source: the checkpoint that its first delta builds on"
)
_PUBLISHED_OR_LOCAL = _place("directory", "a source or a local checkpoint")

COMMANDS: tuple[CliCommand, ...] = (
    CliCommand(name="serve", help="serve a checkpoint over HTTP"),
    CliCommand(
        name="demo",
        help="swap a real model's weights under load, and prove it",
        flags=(_directory("--model", "a checkpoint of your own"), _JSON),
    ),
    CliCommand(
        name="update",
        help="load a checkpoint into a running server",
        flags=(
            _place("source", "a directory that the server can read"),
            *_SERVER,
            Flag(
                name="--strategy",
                metavar="NAME",
                help="the load strategy that reads it, of a plug-in of the server; without it the "
                "server's --load-strategy",
            ),
            *_LABELS,
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
        name="push",
        help="bring a checkpoint's tensors to a running server",
        flags=(
            _directory("directory", "a checkpoint on this machine"),
            *_SERVER,
            Flag(
                name="--transport",
                metavar="HOW",
                choices=("auto", "body", "shared-memory"),
                default="auto",
                help="the bytes as a body, or memory that the server sees on the same machine",
            ),
            Flag(
                name="--scope",
                metavar="SCOPE",
                choices=("full", "partial"),
                default="full",
                help="whether it has to be all of the weights",
            ),
            *_LABELS,
            _WITHIN,
            _JSON,
        ),
    ),
    CliCommand(
        name="commit",
        help="make live what a server that follows a stream has pulled",
        flags=(
            *_SERVER,
            _number("--target", "the version; without it, whatever is pulled", _COUNT),
            _seconds(
                "--wait", "for the version to be pulled, S seconds long", Seconds(endless=False)
            ),
            *_LABELS,
            _WITHIN,
            _JSON,
        ),
    ),
    CliCommand(
        name="state",
        help="one look at a running server",
        flags=(*_SERVER, _seconds("--wait", "until it is ready, S seconds long", Seconds()), _JSON),
    ),
    CliCommand(
        name="watch",
        help="a live view of a running server",
        flags=(
            *_SERVER,
            _seconds("--every-s", "seconds between two looks", Seconds(endless=False), default=1.0),
            _number("--times", "end after N looks", _AT_LEAST_ONE),
            _JSON,
        ),
    ),
    CliCommand(
        name="publish",
        help="publish a checkpoint directory as the next version of a stream",
        flags=(
            _directory("directory", "the checkpoint"),
            Flag(
                name="--to",
                metavar="SOURCE",
                help="where versions are published",
                completes="directory",
                required=True,
            ),
            _directory(
                "--base",
                "version 0: the checkpoint that servers are started with; without it the first "
                "version is a full one",
            ),
            Flag(
                name="--run",
                metavar="NAME",
                default="publish",
                help="whose stream it is; a source of another run is refused",
            ),
            Flag(
                name="--encoding",
                metavar="NAME",
                choices=("gap", "xor", "overwrite"),
                default="gap",
                help="how changes are written",
            ),
            _number(
                "--anchor-every", "every N-th version is a full one; 0 is none", _COUNT, default=0
            ),
            _number(
                "--aggregate-every",
                "every N-th version rewrites aggregate/; 0 is none",
                _COUNT,
                default=0,
            ),
            _number(
                "--keep", "then remove what none of the newest N versions needs", _AT_LEAST_ONE
            ),
            _THREADS,
            _JSON,
        ),
    ),
    CliCommand(
        name="prune",
        help="remove versions that no chain needs any more",
        flags=(
            _place("source", "where versions are published"),
            _number(
                "--keep",
                "the newest N versions stay, and all that leads to them",
                _AT_LEAST_ONE,
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
            _directory("directory", "the checkpoint"),
            _directory(
                "--model",
                "the checkpoint that is served; without it, whether it can be served itself",
            ),
            _JSON,
        ),
    ),
    CliCommand(
        name="pull",
        help="bring a local checkpoint to a published version; no server is needed",
        flags=(
            _place("--source", "where versions are published", required=True),
            _directory("--local", "the local checkpoint, which belongs to pulls", required=True),
            _directory(
                "--base", "version 0: the checkpoint that training began with", required=True
            ),
            _number("--target", "the version", _COUNT, required=True),
            Flag(
                name="--local-checkpoint",
                metavar="HOW",
                choices=("materialize", "two-copies", "log"),
                default="materialize",
                help="write the version into the files, the same with a second copy of them, which "
                "is faster, or keep deltas beside them for hotswap's readers to apply",
            ),
            Flag(
                name="--check",
                help="read all of the local checkpoint first, and make it anew when it is damaged",
            ),
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
        name="materialize",
        help="write what a local checkpoint keeps beside its files into them",
        flags=(
            _directory("local", "the local checkpoint"),
            _THREADS,
            _LOCK,
            _JSON,
        ),
    ),
    CliCommand(
        name="inspect",
        help="list published versions, or say what a local checkpoint holds",
        flags=(
            _PUBLISHED_OR_LOCAL,
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
            _PUBLISHED_OR_LOCAL,
            _BASE_KNOWN,
            _VERIFYING_THREADS,
            _LOCK,
            Flag(name="--verbose", help="every fault in full; else three of a kind in one place"),
            _JSON,
        ),
    ),
    CliCommand(
        name="completion",
        help="print a completion script for a shell",
        flags=(
            Flag(name="shell", choices=("bash", "zsh", "fish"), help="which shell"),
            _JSON,
        ),
    ),
)
