"""The commands that take a source, with one in an object store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotswap.cli import main
from hotswap.stream.objects import Objects
from hotswap.stream.place import place_of
from tests.unit.stream.streams import contents_of
from tests.unit.stream.trained import after_step, bytes_in, first_state, write_base

Capture = pytest.CaptureFixture[str]


def said(capsys: Capture, *words: object, code: int = 0) -> dict[str, Any]:
    """The object that a command prints."""
    assert main([*map(str, words), "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_publish_look_pull_and_prune(tmp_path: Path, capsys: Capture) -> None:
    url = f"memory://{tmp_path.name}/run"
    states = [first_state()]
    base = write_base(tmp_path / "base", states[0])
    for step in (1, 2, 3):
        states.append(after_step(states[-1], step))
        made = write_base(tmp_path / f"step-{step}", states[-1])
        published = said(capsys, "publish", made, "--to", url, "--base", base, "--anchor-every", 2)
        assert published["directory"] == f"{url}/weight_v{step:06d}"
    local = tmp_path / "local"
    asked = ["pull", "--source", url, "--local", local, "--base", base, "--target"]
    assert said(capsys, *asked, 3)["mode"] == "seed"
    assert contents_of(local) == bytes_in(states[3])
    assert said(capsys, *asked, 3)["mode"] == "noop"
    kinds = [one["kind"] for one in said(capsys, "inspect", url, "--base", base)["versions"]]
    assert kinds == ["gap", "full", "gap"]
    assert said(capsys, "verify", url, "--base", base)["whole"] is True
    assert said(capsys, "prune", url, "--keep", 1)["removed"] == [1]
    assert said(capsys, *asked, 9, code=3)["error"]["class"] == "SourceNotReady"
    place = place_of(url)
    assert isinstance(place, Objects)
    for path in place.names():
        directory, _, name = path.partition("/")
        target = place / directory / name
        target.store.delete(target.url)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("verify",),
        ("prune", "--keep", "1"),
        ("publish", "base", "--to"),
        ("pull", "--local", "local", "--base", "base", "--target", "1", "--source"),
    ],
)
def test_a_url_with_a_password_is_refused_and_not_repeated(
    words: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_base(tmp_path / "base", first_state())
    assert main([*words, "s3://key:hunter2@bucket/run"]) == 1
    captured = capsys.readouterr()
    assert "hunter2" not in captured.out + captured.err
    assert "credentials come from the environment" in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]
