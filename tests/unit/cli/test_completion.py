"""Completion scripts: bash runs its own, zsh and fish are read."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from hotswap.cli.commands import COMMANDS
from hotswap.cli.completion import completion_script
from hotswap.settings import OPTIONS


def completed(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    script = tmp_path / "hotswap.bash"
    script.write_text(completion_script("bash", OPTIONS))
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
    ],
)
def test_bash(words: tuple[str, ...], offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    assert completed(tmp_path, "hotswap", *words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_others_have_every_command_and_flag(shell: str, tmp_path: Path) -> None:
    script = completion_script(shell, OPTIONS)
    for command in COMMANDS:
        assert command.name in script
        for flag in command.flags:
            if flag.name.startswith("--"):
                assert flag.name.removeprefix("--") in script
            for choice in flag.choices:
                assert choice in script
    assert all(option.name in script for option in OPTIONS)
    program = shutil.which(shell)
    if program is not None:
        path = tmp_path / "script"
        path.write_text(script)
        subprocess.run([program, "-n", str(path)], check=True, timeout=30)


def test_quotes_in_a_help_text_end_no_string() -> None:
    assert any("'" in command.help for command in COMMANDS)
    for line in completion_script("fish", OPTIONS).splitlines()[1:]:
        assert shlex.split(line)[:3] == ["complete", "-c", "hotswap"]
