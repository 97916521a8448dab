"""State dicts written by ``torch.save``, loaded without running what is in them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from hotswap.errors import UpdateRejected
from hotswap.weights.folder import OpenFile

__all__ = ["names_in_torch_file", "read_torch_file"]

_WRAPPERS = ("model", "state_dict")
_ZIP = b"PK\x03\x04"


def read_torch_file(file: OpenFile) -> dict[str, torch.Tensor]:
    """Every tensor of ``file``, in host memory of its own (nothing is mapped).

    A state dict under ``model`` or ``state_dict`` is unwrapped when it is the only
    one. Raises: UpdateRejected for pickles with anything but plain data, for a
    damaged file, and for a content that is no state dict.
    """
    try:
        loaded = _load(file, device="cpu")
    except Exception as error:
        # torch.load raises whatever its parsers do: RuntimeError, UnpicklingError,
        # EOFError, KeyError, struct.error ... each means that the file is not good.
        first_line = str(error).strip().partition("\n")[0]
        raise UpdateRejected(
            f"{file.name}: torch.load(weights_only=True) refused it "
            f"({type(error).__name__}: {first_line}); write a plain state dict, or safetensors"
        ) from error
    return {
        name: _plain(file.name, name, value) for name, value in _unwrap(file.name, loaded).items()
    }


def names_in_torch_file(file: OpenFile) -> frozenset[str]:
    """Of its tensors, without reading them; none of a file that cannot be looked into.

    Of the format of before torch 1.6 only all of it can be read: that is not done.
    """
    if os.pread(file.fileno(), len(_ZIP), 0) != _ZIP:
        return frozenset()
    try:
        with torch.serialization.skip_data():
            state = _unwrap(file.name, _load(file, device="meta"))
    except Exception:
        # Of an optimizer, of a tokenizer: it may be anything, and nobody asked for it.
        return frozenset()
    return frozenset(
        name
        for name, value in state.items()
        if isinstance(name, str) and isinstance(value, torch.Tensor)
    )


def _load(file: OpenFile, *, device: str) -> object:
    """Plain data only. Raises: whatever torch.load's parsers do."""
    with os.fdopen(os.dup(file.fileno()), "rb") as stream:
        # The offset is shared with other duplicates of the descriptor.
        stream.seek(0)
        return torch.load(stream, map_location=device, weights_only=True, mmap=False)


def _unwrap(file_name: str, loaded: object) -> Mapping[str, object]:
    if not isinstance(loaded, Mapping):
        raise UpdateRejected(
            f"{file_name}: holds a {type(loaded).__name__}, wanted a state dict of name: tensor"
        )
    nested = [key for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)]
    loose = [key for key, value in loaded.items() if isinstance(value, torch.Tensor)]
    if len(nested) + bool(loose) > 1:
        raise UpdateRejected(
            f"{file_name}: holds several state dicts ({', '.join(map(repr, nested))}"
            f"{' and tensors beside them' if loose else ''}), wanted one; save the model's alone"
        )
    state: Mapping[str, object] = loaded[nested[0]] if nested else loaded
    if not state:
        raise UpdateRejected(f"{file_name}: holds 0 tensors, wanted at least one")
    return state


def _plain(file_name: str, name: object, value: object) -> torch.Tensor:
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        raise UpdateRejected(
            f"{file_name}: entry {name!r} is a {type(value).__name__}, wanted name: tensor"
        )
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise UpdateRejected(
            f"{file_name}: tensor {name!r} is {value.layout} on {value.device}"
            f"{', quantised' if value.is_quantized else ''}; wanted a dense tensor"
        )
    return value.detach()
