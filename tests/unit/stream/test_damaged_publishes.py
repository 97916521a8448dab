"""What a publisher says of a version that is damaged at the source, and that what it says works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.stream import (
    DeltaDamaged,
    Publisher,
    SourceNotReady,
    StreamError,
    VersionMalformed,
    VersionMissing,
    directory_of,
    pull,
    verify_source,
)
from hotswap.stream.layout import INDEX
from tests.tiers import mostly_long
from tests.unit.stream.streams import contents_of
from tests.unit.stream.trained import State, after_step, bytes_in, first_state, write_base


def a_blob(version: Path) -> None:
    path = next(version.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-12:-4] = bytes(byte ^ 255 for byte in content[-12:-4])
    path.write_bytes(content)


def cut(version: Path) -> None:
    path = next(version.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])


def no_index(version: Path) -> None:
    (version / INDEX).unlink()


def another_number(version: Path) -> None:
    path = version / INDEX
    path.write_text(path.read_text().replace(version.name[-6:], "000099"))


Damage = Callable[[Path], None]
DAMAGES: list[tuple[Damage, type[StreamError]]] = [
    (a_blob, DeltaDamaged),
    (cut, SourceNotReady),
    (no_index, SourceNotReady),
    (another_number, VersionMalformed),
]


def published(root: Path, encoding: str) -> list[State]:
    """Three versions of a trainer's run, the third of which a reader has."""
    states = [first_state()]
    write_base(root / "base", states[0])
    with publisher(root, encoding) as run:
        for step in (1, 2, 3):
            states.append(after_step(states[-1], step))
            run.publish(states[-1])
    reach(root, "ahead", 3, states)
    reach(root, "behind", 1, states)
    return states


def publisher(root: Path, encoding: str = "gap") -> Publisher:
    return Publisher(root / "source", run="run", base_dir=root / "base", encoding=encoding)


def reach(root: Path, local: str, target: int, states: list[State]) -> str:
    report = pull(root / local, root / "source", target, base_dir=root / "base", threads=1)
    assert contents_of(root / local) == bytes_in(states[target])
    return report.mode


@pytest.mark.parametrize(("damage", "kind"), DAMAGES)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("encoding", mostly_long(["gap", "xor", "overwrite"], but=["gap"]))
def test_it_says_how_to_go_on_and_that_works(
    tmp_path: Path, damage: Damage, kind: type[StreamError], version: int, encoding: str
) -> None:
    states, source = published(tmp_path, encoding), tmp_path / "source"
    damage(directory_of(source, version))
    new = after_step(states[-1], 4)
    with publisher(tmp_path, encoding) as run, pytest.raises(kind) as caught:
        run.publish(new)
    told = str(caught.value)
    assert "version 3 is there and cannot be read back" in told
    assert f"move the first of them and all after it out of {source}" in told
    assert not directory_of(source, 4).exists()

    found = verify_source(source, base_dir=tmp_path / "base", threads=1)
    named = sorted({fault.where for fault in found.faults})
    assert named[0] == directory_of(source, version).name
    for number in range(version, 4):
        shutil.move(directory_of(source, number), tmp_path / f"moved-{number}")
    states[version:] = [new]
    with publisher(tmp_path, encoding) as run:
        assert run.publish(new).version == version
        for step in range(version + 1, 5):
            states.append(after_step(states[-1], 10 + step))
            assert run.publish(states[-1]).version == step
    assert verify_source(source, base_dir=tmp_path / "base", threads=1).faults == ()
    # Who had one of those numbers, and who was before them.
    assert reach(tmp_path, "ahead", 3, states) == "reseed"
    assert reach(tmp_path, "ahead", 4, states) == "delta"
    assert reach(tmp_path, "behind", 4, states) == "fold"


def test_a_publisher_that_still_runs_goes_on_from_memory(tmp_path: Path) -> None:
    states = [first_state()]
    write_base(tmp_path / "base", states[0])
    with publisher(tmp_path) as run:
        for step in (1, 2):
            states.append(after_step(states[-1], step))
            run.publish(states[-1])
        a_blob(directory_of(tmp_path / "source", 2))
        states.append(after_step(states[-1], 3))
        assert run.publish(states[-1]).version == 3


def test_a_base_that_was_not_given_is_asked_for_and_nothing_is_to_be_moved(tmp_path: Path) -> None:
    states = published(tmp_path, "gap")
    with (
        Publisher(tmp_path / "source", run="run") as run,
        pytest.raises(StreamError, match="give base_dir") as caught,
    ):
        run.publish(after_step(states[-1], 4))
    assert type(caught.value) is VersionMissing
    assert "move" not in str(caught.value)
