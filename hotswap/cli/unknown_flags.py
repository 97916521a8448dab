"""Words of a command line that nothing takes: refused in one line, with what was meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from hotswap.cli.commands import COMMANDS

__all__ = ["meant_by", "no_command", "parse_known", "refusal_in", "refusal_of"]


def parse_known(
    parser: argparse.ArgumentParser, arguments: Sequence[str], *, flags: Iterable[str]
) -> argparse.Namespace:
    """What ``parser`` makes of ``arguments``; ``flags`` are those it knows.

    Raises: SettingsError for a word that it does not.
    """
    from hotswap.settings import SettingsError

    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise SettingsError(refusal_of(unknown, flags=flags))
    return options


def refusal_of(unknown: Sequence[str], *, flags: Iterable[str]) -> str:
    """Why ``unknown`` is refused. Names flags and no values: one of them may be a key."""
    named = next((word.partition("=")[0] for word in unknown if word.startswith("--")), None)
    if named is None:
        return (
            f"{len(unknown)} words that belong to no flag; every setting has one: "
            "see hotswap serve --help"
        )
    close = get_close_matches(named, list(flags), n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return (
        f"{named} is no flag of hotswap serve, nor of a plug-in that is in use; "
        f"{meant}see hotswap serve --help"
    )


def refusal_in(command: str, unknown: Sequence[str]) -> str:
    """The same of any other command; the words that none of its flags takes are repeated."""
    flags = [flag.name for known in COMMANDS if known.name == command for flag in known.flags]
    close = get_close_matches(unknown[0].partition("=")[0], flags, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    taken = f"hotswap {command} takes no {' '.join(map(repr, unknown))}"
    return f"{taken}{meant} (see hotswap {command} --help)"


def no_command() -> str:
    """What to say of a command line that has none."""
    names = ", ".join(known.name for known in COMMANDS)
    return f"no command was given; wanted one of {names} (see hotswap --help)"


def meant_by(command: str) -> str | None:
    """What to say of a command that there is not; None for one that there is."""
    names = [known.name for known in COMMANDS]
    if command in names:
        return None
    close = get_close_matches(command, names, n=1)
    wanted = f"did you mean {close[0]}?" if close else f"wanted one of {', '.join(names)}"
    return f"{command!r} is no command; {wanted}"
