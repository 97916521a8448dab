"""``hotswap completion``: scripts that complete commands, flags and their values.

They are written out of the commands' own table, the plug-ins' flags included, and need
nothing of hotswap when they run.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hotswap.cli.codes import ExitCode
from hotswap.cli.commands import COMMANDS, CliCommand, Flag
from hotswap.cli.output import print_json, print_lines
from hotswap.options import Option
from hotswap.settings import CHOICES, OPTIONS

__all__ = ["Known", "completion_script", "run_completion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the plug-ins that are installed now bring: flags of ``serve``, and names."""

    options: Sequence[Option] = ()
    engines: Sequence[str] = ()
    strategies: Sequence[str] = ()

    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names that a flag may be given, by the flag."""
        engines = tuple(sorted({"embedded", *self.engines}))
        strategies = tuple(sorted({"disk", *self.strategies}))
        return {"--engine": engines, "--load-strategy": strategies, "--strategy": strategies}


def run_completion(options: argparse.Namespace) -> ExitCode:
    """Print the script for ``options.shell``."""
    from hotswap.cli.plugins import load_installed

    found = load_installed()
    known = Known(
        options=found.options, engines=tuple(found.engines), strategies=tuple(found.strategies)
    )
    script = completion_script(options.shell, known)
    if options.json:
        print_json({"shell": options.shell, "script": script})
    else:
        print_lines(script.split("\n"))
    return ExitCode.DONE


def completion_script(shell: str, known: Known) -> str:
    """The script, with the flags and names that plug-ins bring."""
    writers: Mapping[str, Callable[[Sequence[CliCommand]], str]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    return writers[shell]([_completed(command, known) for command in COMMANDS])


def _completed(command: CliCommand, known: Known) -> CliCommand:
    """``command`` with what only an installation knows."""
    flags, names = command.flags, known.names()
    if command.name == "serve":
        told = Flag(name="--json", help="the same as --log-format json")
        flags = (*map(_serve_flag, (*OPTIONS, *known.options)), told)
    return replace(
        command,
        flags=tuple(replace(flag, choices=names.get(flag.name, flag.choices)) for flag in flags),
    )


def _serve_flag(option: Option) -> Flag:
    is_switch = option.type is bool
    directory = option.name == "model" or option.name.endswith("-root")
    own = CHOICES.get(option.name.replace("-", "_"), ())
    return Flag(
        name=f"--{option.name}",
        help=option.help,
        metavar=None if is_switch else "VALUE",
        choices=option.choices or own,
        negative=is_switch,
        completes="directory" if directory else "",
    )


def _words(command: CliCommand) -> list[str]:
    """Every flag of a command, and its choices where it takes an argument."""
    found: list[str] = []
    for flag in command.flags:
        if not flag.name.startswith("--"):
            found += flag.choices
            continue
        found.append(flag.name)
        if flag.negative:
            found.append(f"--no-{flag.name.removeprefix('--')}")
    return [*found, "--help"]


def _bash(commands: Sequence[CliCommand]) -> str:
    names = " ".join([*(command.name for command in commands), "--version", "--help"])
    cases = "\n".join(_bash_case(command) for command in commands)
    return f"""# bash completion of hotswap
_hotswap() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    COMPREPLY=()
    # Of --flag=value bash makes three words.
    if [ "$current" = "=" ]; then
        current=""
    elif [ "$previous" = "=" ] && [ "$COMP_CWORD" -gt 2 ]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{names}" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
}}
complete -o filenames -F _hotswap hotswap"""


def _bash_case(command: CliCommand) -> str:
    lines = [f"        {command.name})", '            case "$previous" in']
    for flag in command.flags:
        if not flag.name.startswith("--") or flag.metavar is None:
            continue
        if flag.choices:
            words = f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$current"))'
        elif flag.completes == "directory":
            words = 'COMPREPLY=($(compgen -d -- "$current"))'
        else:
            words = ":"
        lines.append(f"                {flag.name}) {words}; return ;;")
    lines.append("            esac")
    lines.append(
        f'            COMPREPLY=($(compgen -W "{" ".join(_words(command))}" -- "$current"))'
    )
    if _takes_directory(command):
        directories = 'COMPREPLY+=($(compgen -d -- "$current"))'
        lines.append(f'            case "$current" in -*) ;; *) {directories} ;; esac')
    lines.append("            ;;")
    return "\n".join(lines)


def _takes_directory(command: CliCommand) -> bool:
    return any(
        flag.completes == "directory" and not flag.name.startswith("--") for flag in command.flags
    )


def _zsh(commands: Sequence[CliCommand]) -> str:
    names = "\n".join(
        f"        {shlex.quote(f'{command.name}:{command.help}')}" for command in commands
    )
    cases = "\n".join(_zsh_case(command) for command in commands)
    return f"""#compdef hotswap
_hotswap() {{
    local -a commands
    commands=(
{names}
    )
    if (( CURRENT == 2 )); then
        _describe 'command' commands
        return
    fi
    local command="${{words[2]}}"
    shift words
    (( CURRENT-- ))
    case "$command" in
{cases}
    esac
}}
compdef _hotswap hotswap"""


def _zsh_case(command: CliCommand) -> str:
    specs = [_zsh_spec(flag) for flag in command.flags]
    specs += [
        _zsh_spec(Flag(name=f"--no-{flag.name.removeprefix('--')}", help=f"not {flag.name}"))
        for flag in command.flags
        if flag.negative
    ]
    lines = " \\\n".join(f"                {shlex.quote(spec)}" for spec in specs)
    return f"        {command.name})\n            _arguments \\\n{lines}\n            ;;"


def _zsh_spec(flag: Flag) -> str:
    values = ""
    if flag.choices:
        values = f"({' '.join(flag.choices)})"
    elif flag.completes == "directory":
        values = "_files -/"
    if not flag.name.startswith("--"):
        return f"1:{flag.name}:{values}"
    # Colons and brackets end a description.
    told = flag.help.replace("[", "(").replace("]", ")").replace(":", ",")
    takes = "" if flag.metavar is None else f":{flag.metavar}:{values}"
    return f"{flag.name}[{told}]{takes}"


def _fish(commands: Sequence[CliCommand]) -> str:
    lines = ["# fish completion of hotswap", "complete -c hotswap -f"]
    names = " ".join(command.name for command in commands)
    for command in commands:
        lines.append(
            f"complete -c hotswap -n 'not __fish_seen_subcommand_from {names}' "
            f"-a {command.name} -d {shlex.quote(command.help)}"
        )
        seen = f"complete -c hotswap -n '__fish_seen_subcommand_from {command.name}'"
        for flag in command.flags:
            lines += [f"{seen} {ending}" for ending in _fish_endings(flag)]
    return "\n".join(lines)


def _fish_endings(flag: Flag) -> list[str]:
    directories = "-a '(__fish_complete_directories)'"
    choices = f"-a {shlex.quote(' '.join(flag.choices))}"
    if not flag.name.startswith("--"):
        return [choices if flag.choices else directories]
    name = flag.name.removeprefix("--")
    told = f"-d {shlex.quote(flag.help)}"
    if flag.metavar is None:
        negative = [f"-l no-{name} -d {shlex.quote(f'not --{name}')}"] if flag.negative else []
        return [f"-l {name} {told}", *negative]
    values = choices if flag.choices else directories if flag.completes else ""
    return [f"-l {name} -x {values} {told}".replace("  ", " ")]
