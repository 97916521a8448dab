"""Random streams, pulled in random ways: what is held and what is kept is what was published."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from hotswap.sparse.cache import PatchCache
from hotswap.sparse.patch import Patch
from hotswap.stream import (
    Keep,
    fused,
    gap,
    one_tensor,
    publish_delta,
    pull,
    several,
    several_room,
    xor_steps,
)
from hotswap.stream.append import LogLimits
from tests.unit.stream.streams import Tensors, held_contents, write_checkpoint

pytestmark = pytest.mark.long

STREAMS = 150
LENGTHS = (0, 8, 64, 2048, 4104, 30_000, 65_536)
SHARES = (0.001, 0.01, 0.1, 0.9)


@dataclass
class Case:
    """One stream; ``versions[n]`` is version ``n``."""

    root: Path
    chance: random.Random
    widths: dict[str, int] = field(default_factory=dict)
    versions: list[Tensors] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = self.chance
        self.numbers = np.random.default_rng(chance.getrandbits(32))
        self.widths = {f"t{at}": chance.choice([1, 2, 4, 8]) for at in range(chance.randint(1, 6))}
        base = {name: self._tensor(width) for name, width in self.widths.items()}
        self.versions = [base]
        write_checkpoint(self.root / "base", base, files=chance.randint(1, min(3, len(base))))
        (self.root / "source").mkdir()
        for version in range(1, chance.randint(1, 6) + 1):
            self._publish(version)

    def _tensor(self, width: int) -> np.ndarray:
        length = self.chance.choice(LENGTHS) // width * width + self.chance.choice([0, 0, width])
        return self.numbers.integers(0, 256, length, np.uint8)

    def _publish(self, version: int) -> None:
        chance, old = self.chance, self.versions[-1]
        new = {name: value.copy() for name, value in old.items()}
        for name, value in new.items():
            elements = value.view(f"<u{self.widths[name]}")
            share = chance.choice(SHARES) if chance.random() < 0.8 else 0.0
            at = np.flatnonzero(self.numbers.random(len(elements)) < share)
            elements[at] ^= self.numbers.integers(1, 255, len(at)).astype(elements.dtype)
        publish_delta(
            self.root / "source",
            version,
            [[(name, old[name], new[name]) for name in new]],
            encoding=chance.choice(["xor", "gap", "gap", "overwrite"]),
            checksum_format=chance.choice(["xxh3-128", "xxh3-128", "adler32"]),
            widths=self.widths,
        )
        self.versions.append(new)

    def check(self) -> int:
        """Pull all of it; in how many pulls."""
        chance, at, pulls = self.chance, 0, 0
        cache, keep = PatchCache(), chance.choice(list(Keep))
        while at < len(self.versions) - 1:
            at = chance.randint(at + 1, len(self.versions) - 1) if pulls else 0
            keep = chance.choice(list(Keep)) if chance.random() < 0.2 else keep
            pull(
                self.root / "local",
                self.root / "source",
                at,
                base_dir=self.root / "base",
                patches=cache if chance.random() < 0.8 else None,
                keep=keep,
                threads=chance.choice([1, 2, 3]),
                limits=LogLimits(versions=chance.choice([1, 3, 8]), share=chance.choice([0.05, 5])),
                check=chance.random() < 0.2,
            )
            pulls += 1
            held = held_contents(self.root / "local")
            assert held == {name: value.tobytes() for name, value in self.versions[at].items()}
        for patch in cache._patches.values():
            self._check_patch(patch)
        return pulls

    def _check_patch(self, patch: Patch) -> None:
        old, new = self.versions[patch.before.version], self.versions[patch.after.version]
        for name, value in old.items():
            padded = np.zeros(-(-len(value) // 8) * 8, np.uint8)
            padded[: len(value)] = value
            if name in patch.tensors:
                padded.view("<u8")[patch.tensors[name].words] = patch.tensors[name].values
            assert padded[: len(value)].tobytes() == new[name].tobytes(), (name, patch)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_is_what_was_published(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every mode and from one to another, with pieces so short that each tensor has several."""
    chance, pulls = random.Random(seed), 0
    for number in range(STREAMS):
        monkeypatch.setattr(fused, "_LEAST_BYTES", chance.choice([1, 4096, 2**20]))
        passing = chance.choice([1024, 2**14])
        monkeypatch.setattr(fused, "PASSING_BYTES", passing)
        monkeypatch.setattr(one_tensor, "PASSING_BYTES", passing)
        monkeypatch.setattr(several_room, "PASSING_BYTES", passing)
        monkeypatch.setattr(several, "ROOM_BYTES", chance.choice([2**14, 2**17, 2**22]))
        monkeypatch.setattr(several, "_BATCH_BYTES", chance.choice([2**15, 2**25]))
        monkeypatch.setattr(several, "_BLOB_BYTES", chance.choice([2**10, 2**23]))
        monkeypatch.setattr(several, "_DENSE_BYTES", chance.choice([0, 4096, 2**16]))
        monkeypatch.setattr(several, "_MOST_TOLD", chance.choice([100, 5000, 2**18]))
        monkeypatch.setattr(xor_steps, "_WHOLE_BYTES", chance.choice([0, 4096, 2**24]))
        monkeypatch.setattr(one_tensor, "_FUSED_BYTES", chance.choice([4096, 2**16]))
        monkeypatch.setattr(one_tensor, "CHUNK_BYTES", chance.choice([2048, 8192]))
        monkeypatch.setattr(gap, "_HASHED_BYTES", chance.choice([2**13, 2**16, 2**23]))
        monkeypatch.setattr(gap, "_PIECE_BYTES", chance.choice([2**13, 2**21]))
        root = tmp_path / str(number)
        root.mkdir()
        pulls += Case(root, chance).check()
    assert pulls > STREAMS
