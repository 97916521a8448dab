"""``hotswap pull``, ``inspect`` and ``verify`` on a stream by an independent writer."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hotswap.cli import bars, main
from hotswap.stream import Progress
from tests.unit.stream.streams import EXPECTED, PUBLISHED, Stream, contents_of, digests_of

SOURCE, BASE = PUBLISHED / "source", PUBLISHED / "base"
LAST = max(map(int, EXPECTED))

Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """The one object that a command prints with ``--json``; nothing else is printed."""
    assert main([*map(str, arguments), "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    [line] = captured.out.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def pulling(local: Path, target: int | str, *, source: Path = SOURCE) -> list[str]:
    flags = {"--source": source, "--local": local, "--base": BASE, "--target": target}
    return ["pull", *(str(word) for item in flags.items() for word in item)]


@pytest.mark.parametrize("version", range(LAST + 1))
def test_pull_gives_the_digests_of_every_version(
    version: int, tmp_path: Path, capsys: Capture
) -> None:
    local = tmp_path / "local"
    report = shown(capsys, *pulling(local, version), "--threads", "1")
    assert digests_of(local) == EXPECTED[str(version)]
    assert (report["mode"], report["version"]) == ("seed", version)
    assert report["written_bytes"] > 0
    assert report["local"] == str(local)


def test_pull_for_people(tmp_path: Path, capsys: Capture) -> None:
    local = tmp_path / "local"
    assert main(pulling(local, 2)) == 0
    assert capsys.readouterr().out.startswith(
        f"{local}: version 2 (seed, 2 versions on 0), read 0."
    )
    assert main(pulling(local, 2)) == 0
    assert "version 2 (noop, 0 versions on 2)" in capsys.readouterr().out


def test_pull_takes_places_relative_to_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shutil.copytree(PUBLISHED, tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    words = ["pull", "--source", "p/source", "--base", "p/base", "--local", "here", "--target", "1"]
    assert shown(capsys, *words)["local"] == str(tmp_path / "here")
    seen = shown(capsys, "inspect", "here")
    assert (seen["checkpoint_source_dir"], seen["base_checkpoint_dir"]) == (
        str(tmp_path / "p" / "source"),
        str(tmp_path / "p" / "base"),
    )


def test_a_pull_that_is_too_early_has_a_code_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    local = tmp_path / "local"
    shown(capsys, *pulling(local, 8))
    error = shown(capsys, *pulling(local, 9), code=3)["error"]
    assert (error["class"], error["retryable"], error["local_version"], error["weights"]) == (
        "SourceNotReady",
        True,
        8,
        "untouched",
    )
    assert main(pulling(local, 9)) == 3
    assert capsys.readouterr().err.startswith("hotswap pull: ")


def test_a_copy_that_cannot_be_mended_has_a_code_of_its_own(
    tmp_path: Path, capsys: Capture
) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    words = [*pulling(stream.local, "", source=stream.source)[:-2], "--base", str(stream.base)]
    shown(capsys, *words, "--target", "1")
    os.truncate(stream.local / "model-00001-of-00002.safetensors", 10)
    shutil.rmtree(stream.source / "weight_v000001")
    error = shown(capsys, *words, "--target", "2", code=4)["error"]
    assert (error["class"], error["local_version"]) == ("LocalDamaged", None)


@pytest.mark.parametrize(
    ("target", "code"), [("-1", 2), ("seven", 2), ("", 2)], ids=["behind", "word", "empty"]
)
def test_a_target_that_is_none(target: str, code: int, tmp_path: Path) -> None:
    words = pulling(tmp_path / "local", "")[:-2]
    try:
        ended: object = main([*words, f"--target={target}"])
    except SystemExit as error:
        ended = error.code
    assert ended == code


@pytest.mark.parametrize("left_out", ["--source", "--local", "--base", "--target"])
def test_every_place_has_to_be_said(left_out: str, tmp_path: Path, capsys: Capture) -> None:
    words = pulling(tmp_path / "local", 1)
    at = words.index(left_out)
    with pytest.raises(SystemExit) as ended:
        main(words[:at] + words[at + 2 :])
    assert ended.value.code == 2
    assert left_out in capsys.readouterr().err


def test_the_operators_hook_is_called_before_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    late = tmp_path / "late"
    (tmp_path / "operators_refresh.py").write_text(
        "import shutil\n"
        "def refresh(source_dir, target_version):\n"
        f"    shutil.copytree({str(SOURCE)!r}, source_dir)\n"
        "def fails(source_dir, target_version):\n"
        "    raise OSError('no mount')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    flag = "--custom-pull-weights-pre-read-hook"
    words = pulling(tmp_path / "local", 1, source=late)
    error = shown(capsys, *words, flag, "operators_refresh.fails", code=3)["error"]
    assert "operators_refresh.fails: pre-read hook failed: OSError: no mount" in error["message"]
    shown(capsys, *words, flag, "operators_refresh.refresh")
    assert digests_of(tmp_path / "local") == EXPECTED["1"]
    error = shown(capsys, *words, flag, "operators_refresh.none", code=2)["error"]
    assert "has no none" in error["message"]
    monkeypatch.setenv("HOTSWAP_CUSTOM_PULL_WEIGHTS_PRE_READ_HOOK", "operators_refresh.none")
    assert main(words) == 2


def test_inspect_a_source(capsys: Capture) -> None:
    seen = shown(capsys, "inspect", SOURCE, "--base", BASE)
    assert (seen["kind"], [one["version"] for one in seen["versions"]]) == (
        "source",
        list(range(1, LAST + 1)),
    )
    kinds = {one["version"]: one["kind"] for one in seen["versions"]}
    assert (kinds[1], kinds[6], kinds[7]) == ("xor", "overwrite", "full")
    assert [one["trouble"] for one in seen["versions"]] == [None] * LAST
    assert seen["versions"][7]["chain"] == [7, 8]
    assert seen["versions"][5]["chain"] == [0, 1, 2, 3, 4, 5, 6]
    assert seen["versions"][3]["density"] == 0
    assert all(0 < one["density"] <= 1 for one in seen["versions"] if one["version"] in (1, 6, 8))
    assert main(["inspect", str(SOURCE), "--no-density"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "version",
        "kind",
        "on",
        "tensors",
        "files",
        "size",
        "density",
        "chain",
        "trouble",
    ]
    assert lines[7].split()[:3] == ["7", "full", "-"]
    assert lines[6].split()[-4:] == ["-", "base", "+", "6"]


def test_inspect_says_what_is_wrong_with_which_version(tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(SOURCE, tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "weight_v000002")
    blob = tmp_path / "s" / "weight_v000006" / "model-00000-of-00002.safetensors"
    os.truncate(blob, blob.stat().st_size - 1)
    seen = {
        one["version"]: one for one in shown(capsys, "inspect", tmp_path / "s", code=1)["versions"]
    }
    assert (seen[3]["missing"], seen[3]["chain"], seen[1]["missing"]) == (2, [], None)
    assert "bytes are there, wanted" in seen[6]["trouble"]
    assert main(["inspect", str(tmp_path / "s")]) == 1
    assert "2 is missing" in capsys.readouterr().out
    assert shown(capsys, "inspect", tmp_path / "none", code=3)["error"]["class"] == "SourceNotReady"
    (tmp_path / "empty").mkdir()
    assert main(["inspect", str(tmp_path / "empty")]) == 0
    assert "no version is published" in capsys.readouterr().out


def test_inspect_a_local_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    local = tmp_path / "local"
    shown(capsys, *pulling(local, 8))
    seen = shown(capsys, "inspect", local)
    assert (seen["kind"], seen["version"], seen["base_version"]) == ("local", 8, 7)
    assert seen["tensors"] == len(EXPECTED["8"])
    assert main(["inspect", str(local)]) == 0
    assert "began with version 7" in capsys.readouterr().out
    (local / ".weight_sync" / "journal").write_bytes(b"cut short")
    seen = shown(capsys, "inspect", local, code=1)
    assert "a pull was cut short" in seen["trouble"]
    (local / ".weight_sync" / "journal").unlink()
    (local / ".weight_sync" / "state.json").unlink()
    assert main(["inspect", str(local)]) == 1
    assert "not what a pull writes" in capsys.readouterr().out


def test_verify_a_source(tmp_path: Path, capsys: Capture) -> None:
    seen = shown(capsys, "verify", SOURCE, "--base", BASE, "--threads", "2")
    assert (seen["whole"], seen["faults"]) == (True, [])
    assert seen["versions"] == list(range(1, LAST + 1))
    assert seen["checks"] >= 20
    shutil.copytree(SOURCE, tmp_path / "s")
    blob = tmp_path / "s" / "weight_v000006" / "model-00000-of-00002.safetensors"
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    assert main(["verify", str(tmp_path / "s"), "--base", str(BASE)]) == 1
    captured = capsys.readouterr()
    assert "hotswap verify: weight_v000006: DeltaDamaged: version 6, tensor" in captured.err
    assert ": 1 fault; " in captured.out
    blob.unlink()
    seen = shown(capsys, "verify", tmp_path / "s", "--base", BASE, code=3)
    assert [fault["kind"] for fault in seen["faults"]] == ["SourceNotReady"]
    assert main(["verify", str(SOURCE)]) == 1
    assert "builds on the base, which was not given" in capsys.readouterr().err


def test_verify_a_local_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    local = tmp_path / "local"
    shown(capsys, *pulling(local, 3))
    assert shown(capsys, "verify", local)["versions"] == [3]
    before = contents_of(local)
    path = local / "model-00001-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    seen = shown(capsys, "verify", local, code=1)
    assert (len(seen["faults"]), seen["checks"]) == (1, len(before))
    assert seen["faults"][0]["kind"] == "LocalDamaged"
    assert seen["faults"][0]["tensor"] in before
    # What it advises: the same pull looks at nothing, and with --check it does.
    assert "pull the version again with --check" in seen["faults"][0]["message"]
    assert shown(capsys, *pulling(local, 3))["mode"] == "noop"
    assert shown(capsys, *pulling(local, 3), "--check")["mode"] == "reseed"
    assert contents_of(local) == before
    assert shown(capsys, "verify", local)["faults"] == []
    (local / ".weight_sync" / "journal").write_bytes(b"cut short")
    assert shown(capsys, "verify", local, code=3)["error"]["class"] == "PullPending"


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path, capsys: Capture) -> None:
    local = tmp_path / "local"
    shown(capsys, *pulling(local, 1))
    state = local / ".weight_sync" / "state.json"
    state.unlink()
    state.symlink_to(state)
    # What is wrong with it, and what that means for the bytes.
    for command, code, says in (("inspect", 1, str(state)), ("verify", 4, "its state or log is")):
        told = shown(capsys, command, local, code=code)["error"]
        assert says in told["message"]
        assert told["weights"] == "untouched"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with bars.bars(shown=True) as progress:
        assert progress is not None
        for done in (1, 2):
            progress(Progress(phase="apply", done_bytes=done, total_bytes=2))
    assert "apply" in terminal.getvalue()
    with bars.bars(shown=False) as progress:
        assert progress is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bars.bars(shown=True) as progress:
        assert progress is None


def test_a_pull_at_a_terminal_draws_bars_and_prints_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(pulling(tmp_path / "local", 1)) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'local'}: version 1 (seed")
    assert "seed" in terminal.getvalue()


def test_a_wait_is_shown_until_the_next_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with bars.bars(shown=True, begins="waiting for it") as progress:
        assert progress is not None
        assert repr(progress) == "<Bars waiting for it>"
        progress.show("staging", 10, 20)
        progress.show("queued", 0, None)
        shown = [task.description for task in progress._live.tasks if task.visible]
    assert shown == ["staging", "queued"]
    assert "waiting for it" in terminal.getvalue()


def test_inspect_at_a_terminal_draws_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["inspect", str(SOURCE), "--base", str(BASE)]) == 0
    assert "density" in terminal.getvalue()


def test_verify_lists_a_few_faults_of_a_kind_unless_asked(tmp_path: Path, capsys: Capture) -> None:
    local = tmp_path / "local"
    shown(capsys, *pulling(local, 3))
    for path in local.glob("*.safetensors"):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        path.write_bytes(content[:start] + bytes(0xFF ^ byte for byte in content[start:]))
    assert main(["verify", str(local)]) == 1
    captured = capsys.readouterr()
    *few, last = captured.err.splitlines()
    assert len(few) == 3
    told = re.fullmatch(r".*: LocalDamaged: (\d+) more like these; --verbose lists them", last)
    assert told is not None
    assert captured.out.endswith(f": {3 + int(told[1])} faults\n")
    assert main(["verify", str(local), "--verbose"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 3 + int(told[1])


def test_a_log_and_what_becomes_of_it(tmp_path: Path, capsys: Capture) -> None:
    local = tmp_path / "local"
    assert shown(capsys, *pulling(local, 1))["mode"] == "seed"
    report = shown(capsys, *pulling(local, 2), "--local-checkpoint", "log")
    assert (report["mode"], report["versions"]) == ("log", [2])
    assert digests_of(local) == EXPECTED["1"]
    survey = shown(capsys, "inspect", local)
    assert (survey["version"], survey["plain_version"], survey["log_versions"]) == (2, 1, [2])
    assert main(["inspect", str(local)]) == 0
    assert re.search(r"files at +1\nlog +2: .* applied by hotswap", capsys.readouterr().out)
    assert shown(capsys, "verify", local)["versions"] == [2]
    assert main(["serve", "--model", str(local)]) == 2
    assert f"wanted plain files: hotswap materialize {local}" in capsys.readouterr().err
    report = shown(capsys, "materialize", local, "--threads", "1")
    assert (report["mode"], report["start"], report["version"]) == ("delta", 1, 2)
    assert report["local"] == str(local)
    assert digests_of(local) == EXPECTED["2"]
    assert main(["materialize", str(local)]) == 0
    assert "version 2 (noop" in capsys.readouterr().out
    error = shown(capsys, "materialize", tmp_path / "absent", code=1)["error"]
    assert (error["class"], error["weights"]) == ("StreamError", "untouched")
