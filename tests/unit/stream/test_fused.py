"""Tensors that are read, changed and hashed in one call: the same as step by step, in every way."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from hotswap.sparse.cache import PatchCache
from hotswap.stream import Keep, PullMode, fused, gap_kernels, one_tensor, pull, several
from hotswap.stream.fused import Fused
from hotswap.stream.state import Reserved
from tests.tiers import mostly_long
from tests.unit.stream.streams import Stream, damage, held_contents

# An optional extra, which `make setup` installs.
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("numba"), reason="numba is not installed"
)

STREAMS = {
    "gap": ("gap", "gap", "gap"),
    "xor": ("xor", "xor", "xor"),
    "mixed": ("gap", "xor", "gap"),
    "overwrite": ("gap", "overwrite", "xor"),
}
WAYS = {"one by one": (1, 2, 3), "one, then two": (1, 3), "at once": (3,)}
LENGTHS = {"words": 4096 * 3, "elements": 4098 * 3, "bytes": 4099 * 3}


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every tensor of a test is one for few calls of its own, and several of them."""
    monkeypatch.setattr(several, "is_worth_fusing", lambda length: False)
    monkeypatch.setattr(fused, "_LEAST_BYTES", 1)
    monkeypatch.setattr(one_tensor, "PASSING_BYTES", 1024)
    monkeypatch.setattr(fused, "PASSING_BYTES", 1024)
    monkeypatch.setattr(one_tensor, "_FUSED_BYTES", 4096)
    monkeypatch.setattr(one_tensor, "CHUNK_BYTES", 2048)


class Calls:
    """Which tensors went the way of few calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        finish = Fused.finish

        def counted(one: Fused) -> str:
            self.count += 1
            return finish(one)

        monkeypatch.setattr(Fused, "finish", counted)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def pulled(
    root: Path, encodings: tuple[str, ...], length: int, *, keep: Keep, targets: tuple[int, ...]
) -> tuple[dict[str, bytes], object, list[object]]:
    """What is held, its recorded checksums, and what was kept for sparse commits."""
    stream = Stream(root, *encodings, length=length)
    patches = PatchCache()
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    for target in targets:
        pull(
            stream.local,
            stream.source,
            target,
            base_dir=stream.base,
            keep=keep,
            threads=2,
            patches=patches,
        )
        assert held_contents(stream.local) == stream.at(target)
    kept = [
        (name, one.words.tolist(), one.values.tolist(), one.length_bytes)
        for patch in patches._patches.values()
        for name, one in sorted(patch.tensors.items())
    ]
    held = held_contents(stream.local)
    digests = {name: xxhash.xxh3_128_hexdigest(value) for name, value in held.items()}
    return held, digests, list(kept)


@pytest.mark.parametrize("length", mostly_long(LENGTHS, but=["words"]))
@pytest.mark.parametrize("way", mostly_long(WAYS, but=["one by one", "at once"]))
@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("encodings", STREAMS)
def test_the_same_as_in_steps(
    encodings: str,
    keep: Keep,
    way: str,
    length: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
) -> None:
    case, targets = (STREAMS[encodings], LENGTHS[length]), WAYS[way]
    few = pulled(tmp_path / "few", *case, keep=keep, targets=targets)
    # Each time the tensor whose length is of whole words, if not more.
    if (way, encodings) == ("one by one", "gap"):
        assert calls.count >= 3
    if (way, encodings, length) == ("one by one", "xor", "words"):
        assert calls.count >= (1 if keep is Keep.LOG else 3)  # of a log, the first alone
    before = calls.count
    monkeypatch.setattr(fused, "has_native_hash", lambda: False)
    steps = pulled(tmp_path / "steps", *case, keep=keep, targets=targets)
    assert calls.count == before
    assert few == steps


def test_without_who_asks_for_words(tmp_path: Path, calls: Calls) -> None:
    """As `hotswap pull` does: pieces only pass through what stays in the processor's cache."""
    for keep, encoding in ((Keep.LOG, "gap"), (Keep.LOG, "xor"), (Keep.COPIES, "xor")):
        stream = Stream(tmp_path / keep / encoding, encoding, encoding, length=12_344, count=1)
        for target in (0, 1, 2):
            pull(stream.local, stream.source, target, base_dir=stream.base, keep=keep)
            assert held_contents(stream.local) == stream.at(target)
    assert calls.count == 5  # two xor versions of a log are two dense changes


@pytest.mark.parametrize("keep", list(Keep))
def test_a_damaged_copy_is_told_from_a_damaged_delta(keep: Keep, tmp_path: Path) -> None:
    stream = Stream(tmp_path, "gap", length=12_344)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    damage(stream.local)
    report = pull(stream.local, stream.source, 1, base_dir=stream.base, keep=keep)
    assert report.mode is PullMode.RESEED
    assert "has the checksum" in str(report.reason)
    assert held_contents(stream.local) == stream.at(1)


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("how", ["shorter", "written to"])
def test_a_file_that_changes_meanwhile_is_found(
    keep: Keep, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(tmp_path, "gap", length=12_344, count=2)
    pull(stream.local, stream.source, 0, base_dir=stream.base)
    file = sorted(stream.local.glob("*.safetensors"))[0]
    through, left = Fused.through, [1]

    def changing(one: Fused, out: np.ndarray, span: int) -> object:
        if left:
            left.pop()
            if how == "shorter":
                os.truncate(file, 200)
            else:
                os.utime(file, (1, 1))
        return through(one, out, span)

    monkeypatch.setattr(Fused, "through", changing)
    report = pull(stream.local, stream.source, 1, base_dir=stream.base, keep=keep, threads=1)
    assert (report.mode, left) == (PullMode.RESEED, [])
    assert "cannot be read" in str(report.reason)
    assert held_contents(stream.local) == stream.at(1)
    assert not Reserved(stream.local).is_pending


@pytest.mark.parametrize("keep", list(Keep))
def test_what_fails_once_is_done_in_steps(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was told of it before is told once."""
    stream, through = Stream(tmp_path, "gap", length=12_344, count=1), Fused.through
    calls, fails_at = [0], [3]

    def failing(one: Fused, out: np.ndarray, span: int) -> object:
        calls[0] += 1
        return None if calls == fails_at else through(one, out, span)

    def patched(local: Path) -> list[object]:
        cache = PatchCache()
        for target in (0, 1):
            report = pull(
                local, stream.source, target, base_dir=stream.base, keep=keep, patches=cache
            )
        assert report.reason is None
        assert held_contents(local) == stream.at(1)
        (patch,) = cache._patches.values()
        return [(n, t.words.tolist(), t.values.tolist()) for n, t in patch.tensors.items()]

    monkeypatch.setattr(Fused, "through", failing)
    failed = patched(tmp_path / "fails")
    assert calls == fails_at
    assert failed == patched(tmp_path / "does not")
    assert calls > fails_at


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_the_loop_says_the_same_uncompiled(
    kind: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = "gap" if kind == "sparse" else "xor"
    stream = Stream(tmp_path, encoding, length=4096, count=1)
    found = []
    for name, loop in (("compiled", fused._loop()), ("plain", gap_kernels.read_change_hash)):
        monkeypatch.setattr(fused, "_loop", lambda loop=loop: loop)
        local, patches = tmp_path / name, PatchCache() if told else None
        for target in (0, 1):
            pull(
                local,
                stream.source,
                target,
                base_dir=stream.base,
                keep=Keep.LOG,
                patches=patches,
                threads=1,
            )
        assert held_contents(local) == stream.at(1)
        kept = patches._patches.values() if patches is not None else ()
        found.append(
            [(t.words.tolist(), t.values.tolist()) for p in kept for t in p.tensors.values()]
        )
    assert found[0] == found[1]
    assert bool(found[0]) == told
