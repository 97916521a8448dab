"""Writing versions the way slime and miles do: their bytes, their names, their order.

A version's directory is visible while it is incomplete; its index is written last, and
every file through a temporary one, fsync and rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import safetensors.numpy

from hotswap.stream.checksums import OWN_CHECKSUM, new_hasher
from hotswap.stream.encodings import Bytes, Encoding, encode, encoding_named, hasher_for
from hotswap.stream.errors import StreamError
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.objects import Objects
from hotswap.stream.place import place_of
from hotswap.stream.publisher_index import delta_index

__all__ = ["Change", "publish_delta"]

Change: TypeAlias = tuple[str, Bytes, Bytes]
"""Tensor name, old bytes, new bytes: flat arrays of ``uint8``."""

_WIDTH = 2
_HOW = "give array.reshape(-1).view(numpy.uint8), or tensor.reshape(-1).view(torch.uint8).numpy()"


def publish_delta(
    source: Path,
    version: int,
    parts: Sequence[Iterable[Change]],
    *,
    encoding: str = "xor",
    checksum_format: str = OWN_CHECKSUM,
    widths: Mapping[str, int] | None = None,
) -> Path:
    """Write ``version``, which builds on the one before it; return its directory.

    Each of ``parts`` becomes one file, unless nothing changed in it; a part is held in
    memory, compressed. Tensors that did not change are left out. ``widths``: bytes an element
    (1, 2, 4, 8) by tensor, for ``gap``; 2 where it does not say.

    What is refused leaves nothing behind. An OSError may leave a directory without its index,
    which nobody takes for a version; publishing it again completes it.

    Raises: TypeError for what is no flat array of ``uint8``; StreamError for version 0 or
    less, one that is published already, a tensor in two parts, one that changed its length,
    or one too long for ``overwrite``; UnknownEncoding; OSError.
    """
    if version < 1:
        raise StreamError(f"version {version} cannot be published, wanted 1 or more")
    new_hasher(checksum_format)
    chosen = encoding_named(encoding)
    encoded = [_encoded(part, chosen, checksum_format, widths or {}) for part in parts]
    files = [part for part in encoded if part]
    weight_map = dict[str, str]()
    for number, part in enumerate(files):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        twice = weight_map.keys() & part.keys()
        if twice:
            raise StreamError(f"tensor {min(twice)!r} is in two parts, wanted it in one")
        weight_map |= dict.fromkeys(part, file)
    place = place_of(source)
    if isinstance(place, Objects):
        raise StreamError(f"{place}: is a URL, and this writes directories only; use a Publisher")
    directory = directory_of(place, version)
    if (directory / INDEX).exists():
        raise StreamError(
            f"{directory}: version {version} is published already, and readers may have it; "
            "publish the next number, or remove the directory when nobody has it"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for part in files:
        _write(directory / weight_map[next(iter(part))], _file(part))
    _write(directory / INDEX, _index(version, chosen, checksum_format, weight_map))
    return directory


def _encoded(
    changes: Iterable[Change],
    encoding: Encoding,
    checksum_format: str,
    widths: Mapping[str, int],
) -> dict[str, tuple[bytes, str]]:
    def entries() -> Iterator[tuple[str, tuple[bytes, str]]]:
        for name, old, new in changes:
            _check_flat(name, "old", old)
            _check_flat(name, "new", new)
            hasher = hasher_for(encoding, checksum_format)
            width = widths.get(name, _WIDTH)
            blob = encode(encoding, old, new, width=width, hasher=hasher)
            if blob is not None:
                yield name, (blob, hasher.hexdigest())

    return dict(entries())


def _check_flat(name: str, which: str, value: object) -> None:
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim == 1 and value.flags.c_contiguous:
            return
        loose = "" if value.flags.c_contiguous else ", not contiguous"
        seen = f"an array of {value.dtype}, shape {value.shape}{loose}"
    else:
        seen = f"of type {type(value).__name__}"
    raise TypeError(
        f"tensor {name!r}: its {which} bytes are {seen}, wanted a contiguous numpy array of uint8 "
        f"with one dimension; {_HOW}"
    )


def _file(part: Mapping[str, tuple[bytes, str]]) -> bytes:
    blobs = {name: np.frombuffer(blob, np.uint8) for name, (blob, _) in part.items()}
    metadata = {name: digest for name, (_, digest) in part.items()}
    return safetensors.numpy.save(blobs, metadata=metadata)


def _index(
    version: int, encoding: Encoding, checksum_format: str, weight_map: Mapping[str, str]
) -> bytes:
    index = delta_index(
        version,
        base=version - 1,
        encoding=encoding,
        checksum_format=checksum_format,
        weight_map=weight_map,
    )
    return json.dumps(index).encode()


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.tmp")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
