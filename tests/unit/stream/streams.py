"""Small checkpoints and streams for the tests of ``hotswap.stream``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy
import xxhash

from hotswap.errors import UpdateRejected
from hotswap.stream.apply import fold
from hotswap.stream.checksums import OWN_CHECKSUM
from hotswap.stream.encodings import Bytes
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.log import holding_in
from hotswap.stream.log_files import OpenLog
from hotswap.stream.publisher import publish_delta
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors

Tensors = dict[str, Bytes]

PUBLISHED = Path(__file__).parent / "published"
EXPECTED: Mapping[str, Mapping[str, str]] = json.loads(
    (PUBLISHED / "expected-xxh3-128.json").read_text()
)


def refusal_of(call: Callable[[], object]) -> UpdateRejected | None:
    """What ``call`` is refused with, None when it is not; anything else is raised."""
    try:
        call()
    except UpdateRejected as error:
        return error
    return None


def digests_of(directory: Path) -> dict[str, str]:
    """xxh3-128 of every tensor of a checkpoint directory."""
    return {
        name: xxhash.xxh3_128_hexdigest(value) for name, value in contents_of(directory).items()
    }


def contents_of(directory: Path) -> dict[str, bytes]:
    """The bytes of every tensor of a checkpoint directory, as its files have them."""
    found = dict[str, bytes]()
    with StoredTensors.at(directory, with_log=True) as stored:
        for name, tensor in stored.tensors.items():
            buffer = bytearray(tensor.span.length)
            tensor.read_into(memoryview(buffer))
            found[name] = bytes(buffer)
    return found


def held_contents(directory: Path) -> dict[str, bytes]:
    """The bytes of every tensor that a local checkpoint holds: its files, and its log on them."""
    held = holding_in(directory)
    found = contents_of(directory)
    if held is None:
        return found
    lengths = {name: len(value) for name, value in found.items()}
    with OpenLog(held, lengths, paths=Reserved(directory)) as log:
        for name in log.names:
            content = np.frombuffer(found[name], np.uint8).copy()
            assert fold(content, log.deltas(name)) == held.state.tensors[name]
            found[name] = content.tobytes()
    return found


def damage(local: Path) -> None:
    """Change a byte of a tensor in a local checkpoint."""
    file = next(local.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def made(seed: int = 0, *, length: int = 3001, count: int = 4, step: int = 1) -> Tensors:
    """``count`` tensors of random bytes, the first of ``length``, each next one ``step`` longer."""
    source = np.random.default_rng(seed)
    return {
        f"layers.{number}.weight": source.integers(0, 256, length + number * step, np.uint8)
        for number in range(count)
    }


def changed(tensors: Tensors, seed: int, *, share: float = 0.01) -> Tensors:
    """A copy in which about ``share`` of the bytes of every tensor are others."""
    source = np.random.default_rng(seed)
    after = {name: value.copy() for name, value in tensors.items()}
    for value in after.values():
        positions = np.flatnonzero(source.random(len(value)) < share)
        value[positions] ^= source.integers(1, 256, len(positions), np.uint8)
    return after


def write_checkpoint(directory: Path, tensors: Tensors, *, files: int = 2) -> Path:
    """A checkpoint of ``files`` files with an index, or one file without."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "test"}')
    if files == 1:
        _save(directory / "model.safetensors", tensors)
        return directory
    weight_map = dict[str, str]()
    for number in range(files):
        names = sorted(tensors)[number::files]
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        _save(directory / file, {name: tensors[name] for name in names})
        weight_map |= dict.fromkeys(names, file)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def publish(
    source: Path,
    version: int,
    old: Tensors,
    new: Tensors,
    *,
    files: int = 1,
    encoding: str = "xor",
    checksum_format: str = OWN_CHECKSUM,
) -> Path:
    """Publish ``new`` as ``version`` on ``old``, in ``files`` parts."""
    changes = [(name, old[name], new[name]) for name in sorted(new)]
    parts = [changes[number::files] for number in range(files)]
    return publish_delta(source, version, parts, encoding=encoding, checksum_format=checksum_format)


class Stream:
    """A base and published versions below ``root``; ``tensors[n]`` is version ``n``."""

    def __init__(self, root: Path, *encodings: str, **shape: int) -> None:
        self.base = root / "base"
        self.source = root / "source"
        self.local = root / "local"
        self.tensors = [made(**shape)]
        self.source.mkdir(parents=True)
        write_checkpoint(self.base, self.tensors[0])
        for encoding in encodings:
            self.add(encoding)

    def add(
        self,
        encoding: str,
        *,
        share: float = 0.01,
        files: int = 1,
        checksum_format: str = OWN_CHECKSUM,
    ) -> Path:
        """Publish one version more; ``full`` for a whole checkpoint without an index."""
        version, old = len(self.tensors), self.tensors[-1]
        new = changed(old, version, share=share)
        self.tensors.append(new)
        if encoding == "full":
            return write_checkpoint(directory_of(self.source, version), new, files=1)
        return publish(
            self.source,
            version,
            old,
            new,
            files=files,
            encoding=encoding,
            checksum_format=checksum_format,
        )

    def at(self, version: int) -> dict[str, bytes]:
        """The bytes that ``version`` has."""
        return {name: value.tobytes() for name, value in self.tensors[version].items()}


def edit_index(directory: Path, **metadata: object) -> None:
    """Change entries of a version's ``metadata``; None removes one."""
    path = directory / INDEX
    index = json.loads(path.read_text())
    index["metadata"] |= metadata
    index["metadata"] = {k: v for k, v in index["metadata"].items() if v is not None}
    path.write_text(json.dumps(index))


def _save(path: Path, tensors: Mapping[str, Bytes]) -> None:
    path.write_bytes(safetensors.numpy.save(dict(tensors)))
