"""Tensors that are read, changed and hashed in one call: the same as one by one, in every way."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hotswap.sparse.cache import PatchCache
from hotswap.stream import (
    DeltaDamaged,
    Keep,
    PullMode,
    fused,
    gap_kernels,
    one_tensor,
    pull,
    several,
    several_room,
)
from hotswap.stream.append import LogLimits
from hotswap.stream.layout import INDEX, directory_of
from tests.tiers import mostly_long
from tests.unit.stream.streams import Stream, damage, held_contents, publish, refusal_of

# An optional extra, which `make setup` installs.
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("numba"), reason="numba is not installed"
)

LENGTH = 2**16
STEPS = {"whole words": 8, "whole pages": 4096, "some not": 4, "shorter each": -8192}
WAYS = {"one by one": (1, 2, 3), "one, then two": (1, 3), "at once": (3,)}


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every tensor is one for a call with others, a few of them, and several pieces."""
    monkeypatch.setattr(fused, "_LEAST_BYTES", 1)
    for module in (several_room, one_tensor, fused):
        monkeypatch.setattr(module, "PASSING_BYTES", 2**14)
    monkeypatch.setattr(several, "ROOM_BYTES", 3 * LENGTH)


class Runs:
    """How many tensors each call did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = list[int]()
        run = several._run

        def counted(batch: Sequence[several._Taken]) -> int:
            self.done.append(run(batch))
            return self.done[-1]

        monkeypatch.setattr(several, "_run", counted)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def streamed(root: Path, *encodings: str, step: int = 8, length: int = LENGTH) -> Stream:
    """Versions in which elements of two bytes change as a whole, so that ``gap`` is the shorter."""
    stream = Stream(root, length=length, count=5, step=step)
    for version, encoding in enumerate(encodings or ("gap",), 1):
        random, old = np.random.default_rng(version), stream.tensors[-1]
        new = {name: value.copy() for name, value in old.items()}
        for value in new.values():
            elements = value.view("<u2")
            at = np.flatnonzero(random.random(len(elements)) < 0.01)
            elements[at] ^= random.integers(1, 2**16, len(at), np.uint16)
        stream.tensors.append(new)
        publish(stream.source, version, old, new, encoding=encoding)
    return stream


def pulled(stream: Stream, local: Path, targets: Sequence[int], keep: Keep) -> object:
    """What was kept for sparse commits while ``local`` was brought to each of ``targets``."""
    patches = PatchCache()
    for target in (0, *targets):
        pull(
            local,
            stream.source,
            target,
            base_dir=stream.base,
            keep=keep,
            threads=2,
            patches=patches,
        )
        assert held_contents(local) == stream.at(target)
    return kept_in(patches)


def kept_in(patches: PatchCache) -> list[object]:
    return [
        (name, one.words.tolist(), one.values.tolist(), one.length_bytes)
        for patch in patches._patches.values()
        for name, one in sorted(patch.tensors.items())
    ]


@pytest.mark.parametrize("step", mostly_long(STEPS, but=["whole words", "some not"]))
@pytest.mark.parametrize("way", mostly_long(WAYS, but=["one by one"]))
@pytest.mark.parametrize("keep", list(Keep))
def test_the_same_as_one_by_one(
    keep: Keep, way: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    stream = streamed(tmp_path, "gap", "gap", "gap", step=STEPS[step])
    together = pulled(stream, tmp_path / "together", WAYS[way], keep)
    # Of a version alone each tensor of whole words goes with others; a journal is told of words.
    if way == "one by one" and keep is not Keep.FILES:
        assert max(runs.done) >= 2
    before = len(runs.done)
    monkeypatch.setattr(several, "is_worth_fusing", lambda length: False)
    alone = pulled(stream, tmp_path / "alone", WAYS[way], keep)
    assert len(runs.done) == before
    assert together == alone
    assert together


@pytest.mark.parametrize(("keep", "each"), [(Keep.LOG, [3, 2]), (Keep.COPIES, [2, 1, 2])])
def test_without_who_asks_for_words(
    keep: Keep, each: list[int], tmp_path: Path, runs: Runs
) -> None:
    """As `hotswap pull` does; for the third of a file that is kept there is no room."""
    stream = streamed(tmp_path, "gap", "gap", "gap")
    for target in (0, 1, 2, 3):
        pull(stream.local, stream.source, target, base_dir=stream.base, keep=keep, threads=1)
        assert held_contents(stream.local) == stream.at(target)
    assert runs.done == 3 * each


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("keep", list(Keep))
def test_short_ones_that_change_as_a_whole(
    keep: Keep, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    """By `xor`, and by `gap`, which holds an xor of what changes in every byte."""
    stream = streamed(tmp_path, "xor", "gap", "xor", length=2048)
    dense = {name: value ^ np.uint8(0x11) for name, value in stream.tensors[-1].items()}
    publish(stream.source, 4, stream.tensors[-1], dense, encoding="gap")
    stream.tensors.append(dense)
    found = []
    for name in ("together", "alone"):
        patches = PatchCache() if told else None
        for target in (0, 1, 2, 3, 4):
            local = tmp_path / name
            pull(
                local,
                stream.source,
                target,
                base_dir=stream.base,
                keep=keep,
                patches=patches,
                limits=LogLimits(share=9),
            )
            assert held_contents(local) == stream.at(target)
        found.append(kept_in(patches) if patches is not None else [])
        assert sum(runs.done) == (0 if keep is Keep.FILES else 4 * 5)
        monkeypatch.setattr(several, "is_worth_fusing", lambda length: False)
    assert found[0] == found[1]
    assert bool(found[0]) == told


@pytest.mark.parametrize("keep", [Keep.LOG, Keep.COPIES])
def test_beside_what_goes_alone(keep: Keep, tmp_path: Path, runs: Runs) -> None:
    """Tensors that did not change lie between, and other encodings follow."""
    stream = streamed(tmp_path, "gap", "xor", "gap")
    old = stream.tensors[-1]
    new = {name: value.copy() for name, value in old.items()}
    for name in ("layers.0.weight", "layers.4.weight"):
        new[name][::400] ^= 1
    stream.tensors.append(new)
    publish(stream.source, 4, old, new, encoding="gap")
    pulled(stream, stream.local, (1, 2, 3, 4), keep)
    assert runs.done


@pytest.mark.parametrize("keep", [Keep.LOG, Keep.COPIES])
@pytest.mark.parametrize("done", [0, 1])
def test_what_fails_once_is_done_alone(
    done: int, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    """And what was told of it before is told once."""
    stream = streamed(tmp_path)
    whole = pulled(stream, tmp_path / "whole", (1,), keep)
    loop = several._loop()
    monkeypatch.setattr(several, "_loop", lambda: lambda *given: min(done, loop(*given)))
    runs.done.clear()
    assert pulled(stream, tmp_path / "fails", (1,), keep) == whole
    assert set(runs.done) == {done}


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_damaged_delta_is_named(number: int, keep: Keep, tmp_path: Path) -> None:
    stream, name = streamed(tmp_path), f"layers.{number}.weight"
    directory = directory_of(stream.source, 1)
    (file,) = directory.glob("*.safetensors")
    content = file.read_bytes()
    end = content.index(b'"', content.index(f'"{name}":"'.encode()) + len(name) + 4)
    other = bytes([content[end - 1] ^ 1])
    file.write_bytes(content[: end - 1] + other + content[end:])
    pull(stream.local, stream.source, 0, base_dir=stream.base, keep=keep)
    refused = refusal_of(
        lambda: pull(stream.local, stream.source, 1, base_dir=stream.base, keep=keep)
    )
    assert isinstance(refused, DeltaDamaged)
    assert name in str(refused)
    assert "gives bytes with the checksum" in str(refused)
    assert held_contents(stream.local) == stream.at(0)


@pytest.mark.parametrize("keep", [Keep.LOG, Keep.COPIES])
def test_a_damaged_copy_is_told_from_a_damaged_delta(keep: Keep, tmp_path: Path) -> None:
    stream = streamed(tmp_path)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    damage(stream.local)
    report = pull(stream.local, stream.source, 1, base_dir=stream.base, keep=keep)
    assert report.mode is PullMode.RESEED
    assert "has the checksum" in str(report.reason)
    assert held_contents(stream.local) == stream.at(1)


@pytest.mark.parametrize("keep", [Keep.LOG, Keep.COPIES])
@pytest.mark.parametrize("how", ["shorter", "written to"])
def test_a_file_that_changes_meanwhile_is_found(
    how: str, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streamed(tmp_path)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    file = sorted(stream.local.glob("*.safetensors"))[0]
    loop, left = several._loop(), [1]

    def changing(*given: object) -> int:
        if left:
            left.pop()
            if how == "shorter":
                os.truncate(file, 1000)
            else:
                os.utime(file, (1, 1))
        return loop(*given)

    monkeypatch.setattr(several, "_loop", lambda: changing)
    report = pull(stream.local, stream.source, 1, base_dir=stream.base, keep=keep, threads=1)
    assert (report.mode, left) == (PullMode.RESEED, [])
    assert "cannot be read" in str(report.reason)
    assert held_contents(stream.local) == stream.at(1)


@pytest.mark.parametrize("keep", [Keep.LOG, Keep.COPIES])
def test_the_loop_says_the_same_uncompiled(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    stream, found = streamed(tmp_path, "gap", "gap"), list[object]()
    loops: dict[str, Callable[..., int]] = {
        "compiled": several._loop(),
        "plain": gap_kernels.several,
    }
    for name, loop in loops.items():
        monkeypatch.setattr(several, "_loop", lambda loop=loop: loop)
        found.append(pulled(stream, tmp_path / name, (1, 2), keep))
    assert found[0] == found[1]
    assert sum(runs.done) >= 2 * 5


def test_a_batch_is_cut_where_much_is_decoded_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    stream = streamed(tmp_path, "gap", "gap")
    monkeypatch.setattr(several, "_BLOB_BYTES", 1)
    pulled(stream, tmp_path / "blobs", (1, 2), Keep.LOG)
    assert runs.done == 2 * 5 * [1]
    runs.done.clear()
    monkeypatch.setattr(several, "_BLOB_BYTES", 2**23)
    monkeypatch.setattr(several, "_MOST_TOLD", 800)  # about 330 elements of each tensor change
    pulled(stream, tmp_path / "told", (1, 2), Keep.LOG)
    assert sorted(runs.done) == sorted(2 * [2, 1, 2])


@pytest.mark.parametrize("keep", [Keep.LOG, Keep.COPIES])
def test_what_is_decoded_beforehand_is_bounded(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    """About 330 changes of each tensor and version, of three bytes each: two tensors at a time."""
    stream = streamed(tmp_path, "gap", "gap")
    monkeypatch.setattr(several, "_DENSE_BYTES", 0)
    for bytes_, tensors in ((2**11 + 2**9, [2, 2]), (0, [])):
        monkeypatch.setattr(several, "_DECODED_BYTES", bytes_)
        local = tmp_path / str(bytes_)
        pull(local, stream.source, 0, base_dir=stream.base)
        runs.done.clear()
        pull(local, stream.source, 1, base_dir=stream.base, keep=keep, threads=1)
        assert runs.done == tensors
        assert held_contents(local) == stream.at(1)


def test_calls_are_put_together_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of short tensors may be in a batch."""
    asked = [0]

    class Short:
        width, one = 2, SimpleNamespace(is_kept=False, length=8)

        @property
        def told(self) -> int:
            asked[0] += 1
            return 1

    monkeypatch.setattr(several, "_MOST_TOLD", 600)
    shorts: Any = [Short() for _ in range(1000)]
    calls = list(several._calls(shorts))
    assert [len(call) for call in calls] == [600, 400]
    assert asked == [1000]


@pytest.mark.parametrize("there", ["gap", "xor"])
def test_what_was_decoded_of_another_encoding_is_not_taken(there: str, tmp_path: Path) -> None:
    """The same blobs under an index that says otherwise are as damaged as in a new process."""
    stream = streamed(tmp_path, there, length=2048)
    pull(stream.local, stream.source, 0, base_dir=stream.base, keep=Keep.LOG)
    pull(stream.local, stream.source, 1, base_dir=stream.base, keep=Keep.LOG)
    # The same change once more leads back to the base; its blobs are those of version 1.
    publish(stream.source, 2, stream.tensors[1], stream.tensors[0], encoding=there)
    index = directory_of(stream.source, 2) / INDEX
    said = index.read_text()
    index.write_text(said.replace(f'"{there}"', '"xor"' if there == "gap" else '"gap"'))
    refused = refusal_of(
        lambda: pull(stream.local, stream.source, 2, base_dir=stream.base, keep=Keep.LOG)
    )
    assert isinstance(refused, DeltaDamaged)
    assert held_contents(stream.local) == stream.at(1)


def test_rooms_are_as_long_as_what_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, room = list[str](), several_room.Room

    def noting(ones: Sequence[one_tensor.OneTensor]) -> several_room.Room:
        made = room(ones)
        seen.append(repr(made))
        return made

    monkeypatch.setattr(several, "Room", noting)
    for keep in (Keep.LOG, Keep.COPIES):
        stream = streamed(tmp_path / keep)
        for target in (0, 1):
            pull(stream.local, stream.source, target, base_dir=stream.base, keep=keep, threads=1)
    passing, kept = [(2**14, 3), (2**14, 2)], [(LENGTH * 2 + 16, 2), (LENGTH + 32, 1)]
    sizes = [*passing, *kept, (LENGTH * 2 + 32, 2)]
    assert seen == [f"<Room of {size} B for {count} tensors>" for size, count in sizes]
