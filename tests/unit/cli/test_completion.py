"""Completion scripts: every shell that is installed runs its own; what the others get is read."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.cli.commands import COMMANDS
from hotswap.cli.completion import Known, completion_script
from hotswap.options import Option
from hotswap.settings import CHOICES, OPTIONS
from tests.markdown_blocks import ROOT, blocks_of

KNOWN = Known(
    options=[
        Option(name="rsync-depth", help="how deep", choices=("shallow", "deep")),
        Option(name="rsync-root", help="where", repeatable=True),
    ],
    engines=["toy"],
    strategies=["rsync"],
)
# Every flag with a closed set, and what it may be.
CLOSED = [
    (command.name, flag.name, flag.choices)
    for command in COMMANDS
    for flag in command.flags
    if flag.choices and flag.name.startswith("--")
] + [
    *[("serve", f"--{name.replace('_', '-')}", choices) for name, choices in CHOICES.items()],
    ("serve", "--engine", ("embedded", "toy")),
    ("serve", "--load-strategy", ("disk", "rsync")),
    ("serve", "--rsync-depth", ("shallow", "deep")),
    ("update", "--strategy", ("disk", "rsync")),
]


def completed(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    script = tmp_path / "hotswap.bash"
    script.write_text(completion_script("bash", KNOWN))
    bash = shutil.which("bash")
    assert bash is not None
    code = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({shlex.join(words)}); "
        f'COMP_CWORD={len(words) - 1}; _hotswap; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    ran = subprocess.run(
        [bash, "-u", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("st",), ["state"]),
        (("pl",), ["plugins"]),
        (("--v",), ["--version"]),
        (("update", "--pause-mode", "re"), ["retract"]),
        (("update", "--no-f"), ["--no-flush-cache", "--no-fenced"]),
        (("serve", "--allow"), ["--allow-weight-update"]),
        (("serve", "--no-allow"), ["--no-allow-weight-update"]),
        (("serve", "--model", "check"), ["checkpoint"]),
        (("check", "check"), ["checkpoint"]),
        (("check", "--m"), ["--model"]),
        (("state", "--server", "s"), ["sglang"]),
        (("state", "--url", ""), []),
        (("completion", "f"), ["fish"]),
        (("serve", "--dialect", "=", "s"), ["sglang"]),
        (("serve", "--dialect", "="), ["gr", "sglang"]),
        (("serve", "--rsync-root", "check"), ["checkpoint"]),
        (("serve", "--local-root", "check"), ["checkpoint"]),
    ],
)
def test_bash(words: tuple[str, ...], offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    assert completed(tmp_path, "hotswap", *words) == offered


def test_bash_knows_every_closed_set(tmp_path: Path) -> None:
    script = completion_script("bash", KNOWN)
    for command, flag, choices in CLOSED:
        case = script.partition(f"\n        {command})\n")[2].partition("\n            ;;")[0]
        [line] = [line for line in case.splitlines() if line.strip().startswith(f"{flag})")]
        words = " ".join(choices)
        assert f'compgen -W "{words}"' in line
    for command, flag, choices in CLOSED[:: max(len(CLOSED) // 4, 1)]:
        assert completed(tmp_path, "hotswap", command, flag, "") == list(choices)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_others_know_every_closed_set(shell: str) -> None:
    lines = completion_script(shell, KNOWN).splitlines()
    for command, flag, choices in CLOSED:
        words = " ".join(choices)
        if shell == "fish":
            offered = f"-l {flag.removeprefix('--')} -x -a {shlex.quote(words)}"
            seen = f"'__fish_seen_subcommand_from {command}'"
            assert any(seen in line and offered in line for line in lines), flag
        else:
            begun = lines.index(f"        {command})")
            case = lines[begun : lines.index("            ;;", begun)]
            [line] = [line for line in case if line.strip().startswith(f"'{flag}[")]
            assert f":({words})" in line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_others_have_every_command_and_flag(shell: str) -> None:
    script = completion_script(shell, KNOWN)
    for command in COMMANDS:
        assert command.name in script
        for flag in command.flags:
            if flag.name.startswith("--"):
                assert flag.name.removeprefix("--") in script
            for choice in flag.choices:
                assert choice in script
    assert all(option.name in script for option in OPTIONS)


def installed(shell: str) -> str:
    """The shell's program. A machine without it has only the text to look at."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here, so that it cannot read its script")
    return program


def output_of(shell: str, code: str, *options: str) -> list[str]:
    """What ``shell`` prints; it must not complain."""
    program = installed(shell)
    ran = subprocess.run(
        [program, *options, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_its_shell_can_read_it(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(completion_script(shell, KNOWN))
    ran = subprocess.run(
        [installed(shell), "-n", str(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hotswap st", ["state"]),
        ("hotswap update --pause-mode re", ["retract"]),
        ("hotswap update --no-f", ["--no-fenced", "--no-flush-cache"]),
        ("hotswap serve --allow", ["--allow-weight-update"]),
        ("hotswap completion f", ["fish"]),
    ],
)
def test_fish(line: str, offered: list[str], tmp_path: Path) -> None:
    script = tmp_path / "hotswap.fish"
    script.write_text(completion_script("fish", KNOWN))
    code = f"source {shlex.quote(str(script))}; complete -C {shlex.quote(line)}"
    found = [shown.partition("\t")[0] for shown in output_of("fish", code, "--no-config")]
    assert sorted(found) == offered


def test_zsh_is_told_the_flags_of_the_command_at_hand(tmp_path: Path) -> None:
    script = tmp_path / "_hotswap"
    script.write_text(completion_script("zsh", KNOWN))
    # What zsh's own completion functions are given, shown instead of offered.
    asked = (
        'compdef() { }; _arguments() { print -rl -- "$@"; }; '
        '_describe() { print -rl -- "${(@P)2}"; }; '
        f"source {shlex.quote(str(script))}; "
    )
    commands = output_of("zsh", asked + "words=(hotswap ''); CURRENT=2; _hotswap", "-f")
    assert [line.partition(":")[0] for line in commands] == [each.name for each in COMMANDS]
    flags = output_of("zsh", asked + "words=(hotswap update ''); CURRENT=3; _hotswap", "-f")
    assert "--no-fenced[not --fenced]" in flags
    assert any(line.startswith("--pause-mode[") and "(abort retract" in line for line in flags)


def test_quotes_in_a_help_text_end_no_string() -> None:
    assert any("'" in command.help for command in COMMANDS)
    for line in completion_script("fish", KNOWN).splitlines()[1:]:
        assert shlex.split(line)[:3] == ["complete", "-c", "hotswap"]


def test_the_commands_of_the_reference_print_the_scripts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [block] = [
        block
        for block in blocks_of(ROOT / "docs" / "reference" / "cli.md")
        if block.language == "bash"
    ]
    lines = block.code.splitlines()
    shells = []
    for line in lines:
        program, *words = shlex.split(line.partition(" > ")[0])
        assert program == "hotswap"
        assert main(words) == 0
        assert "hotswap" in capsys.readouterr().out.splitlines()[0]
        shells.append(words[-1])
    assert shells == ["bash", "zsh", "fish"]
