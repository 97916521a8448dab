"""A program with the real classes of the sglang wheel: a trainer, and a server that reads.

Three files of the wheel are run, unchanged. What they import beside torch and the standard
library, and the rest of sglang, has no part in the classes and is stood in for: all of it
together would be a CUDA build of torch and a hundred packages.

One JSON object a line: ``{"do": "where" | "write" | "read", ...}``, one line as the answer.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.unit.wire.senders import sharing

__all__ = ["tensors"]

BUCKET = "sglang.srt.weight_sync.tensor_bucket"
COMMON = "sglang.srt.utils.common"
RUNNER = "sglang.srt.model_executor.model_runner"


class _Anything(type):
    """Of what stands for a class, a function, a constant or a decorator of theirs."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __bool__(cls) -> bool:
        return False

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


class Anything(metaclass=_Anything):
    """All of them at once."""


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "sglang.srt.utils":
            # It says "from .common import *", and that file is the real one.
            return getattr(importlib.import_module(COMMON), name)
        return Anything


class _Finder(MetaPathFinder, Loader):
    """Three real files, and stand-ins: for all else of sglang, or for what nobody else finds."""

    def __init__(self, *, of_sglang: bool) -> None:
        self._of_sglang = of_sglang

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (name.split(".")[0] == "sglang") is not self._of_sglang:
            return None
        if name in (BUCKET, COMMON, RUNNER):
            return spec_from_file_location(name, _root() / (name.replace(".", "/") + ".py"))
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


def _root() -> Path:
    return Path(str(distribution("sglang").locate_file("")))


def tensors() -> list[tuple[str, torch.Tensor]]:
    """What both sides know; every offset divides by the width of its dtype, as sglang needs."""
    return [
        ("wide", torch.arange(6, dtype=torch.float32).view(2, 3)),
        ("half", torch.arange(4, dtype=torch.bfloat16)),
        ("turned", torch.arange(8, dtype=torch.float16).view(2, 4).t()),
        ("narrow", torch.arange(5, dtype=torch.uint8)),
    ]


class _Trainer:
    """Keeps what it has written, as a trainer does until the reply."""

    def __init__(self) -> None:
        self.bucket = importlib.import_module(BUCKET)
        self.common = importlib.import_module(COMMON)
        self.runner = importlib.import_module(RUNNER)
        self.kept: list[object] = []

    def where(self) -> object:
        modules = (self.bucket, self.common, self.runner)
        return [str(module.__file__) for module in modules]

    def write(self, form: str) -> object:
        self.kept = [getattr(self, f"_{form}")()]
        return self.common.MultiprocessingSerializer.serialize(self.kept[0], output_str=True)

    def _bucket(self) -> object:
        made = self.bucket.FlattenedTensorBucket(named_tensors=tensors())
        return {"flattened_tensor": made.get_flattened_tensor(), "metadata": made.get_metadata()}

    def _empty(self) -> object:
        return {"flattened_tensor": torch.empty(0, dtype=torch.uint8), "metadata": []}

    def _list(self) -> object:
        return tensors()

    def _local(self) -> object:
        serialize = self.common.MultiprocessingSerializer.serialize
        self.kept.append(tensors())
        made = self.runner.LocalSerializedTensor
        return [(name, made(values=[serialize(x), serialize(x + x)])) for name, x in tensors()]

    def read(self, form: str, text: str) -> object:
        value = self.common.MultiprocessingSerializer.deserialize(text)
        if form == "bucket":
            value = self.bucket.FlattenedTensorBucket(**value).reconstruct_tensors()
        elif form == "local":
            value = [(name, local.get(1)) for name, local in value]
        return [[name, str(x.dtype), x.tolist()] for name, x in value]


def main() -> None:
    """Answer until the input ends."""
    sys.meta_path.insert(0, _Finder(of_sglang=True))
    sys.meta_path.append(_Finder(of_sglang=False))
    sys.modules["pybase64"] = base64  # the same functions, not as fast
    trainer = _Trainer()
    with sharing("file_system"):
        for line in sys.stdin:
            asked = json.loads(line)
            answer = getattr(trainer, asked.pop("do"))(**asked)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
