"""A trainer's tensor in shared memory, and how often it is referred to."""

from __future__ import annotations

import base64
from pathlib import Path

import torch

from tests.unit.wire.senders import (
    BUCKET_MODULES,
    LOCAL_MODULES,
    flattened,
    forking,
    local_class,
    metadata_class,
    sharing,
    standing,
)

__all__ = ["FORMS", "Sender", "base64_of", "users_of"]

FORMS = ("flattened_bucket", "direct", "per_rank")


def users_of(segment: Path) -> int:
    """As torch counts them, in front of the bytes."""
    return int.from_bytes(segment.read_bytes()[:4], "little", signed=True)


def base64_of(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


class Sender:
    """One tensor ``name``, serialised as ``form`` with torch's own ForkingPickler."""

    def __init__(self, *, name: str = "a", form: str = FORMS[0]) -> None:
        before = set(Path("/dev/shm").iterdir())
        metadata, local = metadata_class(), local_class()
        self._tensor = torch.ones(4)
        with (
            sharing("file_system"),
            standing(BUCKET_MODULES[0], FlattenedTensorMetadata=metadata),
            standing(LOCAL_MODULES[0], LocalSerializedTensor=local),
        ):
            value: object = [(name, self._tensor)]
            if form == FORMS[0]:
                value = bucket = flattened([(name, self._tensor)], metadata)
                flat = bucket["flattened_tensor"]
                assert isinstance(flat, torch.Tensor)
                self._tensor = flat
            elif form == FORMS[2]:
                value = [(name, local([forking(self._tensor)]))]
            self.load_format = FORMS[0] if form == FORMS[0] else "direct"
            self.payload = base64_of(forking(value))
        _, segment, _ = self._tensor.untyped_storage()._share_filename_cpu_()
        self.segment = Path("/dev/shm") / bytes(segment).decode().removeprefix("/")
        assert self.segment not in before

    @property
    def users(self) -> int:
        return users_of(self.segment)

    def body(self, **fields: object) -> dict[str, object]:
        return {
            "serialized_named_tensors": [self.payload],
            "load_format": self.load_format,
            **fields,
        }

    def let_go(self) -> None:
        """The trainer needs it no more, and torch removes it where nobody else is counted."""
        del self._tensor
