"""``hotswap completion``: scripts that complete commands, flags and their values.

They are written out of the commands' own table, the plug-ins' flags included, and need
nothing of hotswap when they run.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence

from hotswap.cli.codes import ExitCode
from hotswap.cli.commands import COMMANDS, CliCommand, Flag
from hotswap.cli.output import print_json, print_lines
from hotswap.options import Option

__all__ = ["completion_script", "run_completion"]


def run_completion(options: argparse.Namespace) -> ExitCode:
    """Print the script for ``options.shell``."""
    from hotswap.cli.plugins import load_installed
    from hotswap.settings import OPTIONS

    script = completion_script(options.shell, [*OPTIONS, *load_installed().options])
    if options.json:
        print_json({"shell": options.shell, "script": script})
    else:
        print_lines(script.split("\n"))
    return ExitCode.DONE


def completion_script(shell: str, serve_options: Sequence[Option]) -> str:
    """The script; ``serve_options`` are the flags of ``serve``."""
    writers: Mapping[str, Callable[[Sequence[CliCommand]], str]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    return writers[shell]([_with_serve(command, serve_options) for command in COMMANDS])


def _with_serve(command: CliCommand, options: Sequence[Option]) -> CliCommand:
    if command.name != "serve":
        return command
    flags = [_serve_flag(option) for option in options]
    flags.append(Flag(name="--json", help="the same as --log-format json"))
    return CliCommand(name=command.name, help=command.help, flags=tuple(flags))


def _serve_flag(option: Option) -> Flag:
    is_switch = option.type is bool
    directory = option.name in ("model", "weights-root")
    return Flag(
        name=f"--{option.name}",
        help=option.help,
        metavar=None if is_switch else "VALUE",
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
