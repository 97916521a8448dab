"""Load strategies that promise or deliver something wrong, each in one way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from hotswap.testing.delivered import dense
from hotswap.types import Bucket, Manifest, Payload, TensorSpec
from tests.unit.testing.file_strategy import FilePayload, FileStage
from tests.unit.testing.planted_strategies import VICTIM, broken_stage

__all__: list[str] = []


class Changed(FileStage):
    """Another manifest than that of the files."""

    def load(self) -> None:
        super().load()
        specs = (self.changed(spec) for spec in self.manifest.tensors)
        self.manifest = Manifest.of(spec for spec in specs if spec is not None)

    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return spec


@broken_stage(
    "a tensor is kept quiet about",
    "test_the_manifest_names_every_tensor",
    says=r"manifest lacks layers\.1\.float32",
)
class HidesATensor(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return None if spec.name == VICTIM else spec


@broken_stage(
    "a shape is turned round",
    "test_the_manifest_has_the_shapes_and_dtypes_of_the_source",
    says=r"layers\.1\.float32 \[3, 2\] float32, wanted layers\.1\.float32 \[2, 3\]",
)
class TurnsAShape(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return replace(spec, shape=spec.shape[::-1]) if spec.name == VICTIM else spec


@broken_stage(
    "a dtype is another of its size",
    "test_the_manifest_has_the_shapes_and_dtypes_of_the_source",
    says=r"layers\.1\.float32 \[2, 3\] int32, wanted",
)
class ClaimsAnotherDtype(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return replace(spec, dtype=torch.int32) if spec.name == VICTIM else spec


@broken_stage(
    "a tensor comes twice",
    "test_no_tensor_is_delivered_twice",
    says=r"layers\.1\.float32 in buckets 1, 2",
)
class DeliversTwice(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        for bucket in super().buckets():
            yield bucket
            if bucket[0][0] == VICTIM:
                yield bucket


@broken_stage(
    "a tensor is promised and never comes",
    "test_no_tensor_is_missing",
    says=r"names layers\.1\.float32, and no bucket",
)
class ForgetsATensor(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        return (bucket for bucket in super().buckets() if bucket[0][0] != VICTIM)


@broken_stage(
    "a tensor comes that nobody knows",
    "test_nothing_comes_that_was_not_announced",
    says=r"optimizer\.step \(bucket 6\)",
)
class BringsAStranger(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        yield from super().buckets()
        yield [("optimizer.step", torch.zeros(1))]


class OtherPayload(FileStage):
    """Something else than the file has, in memory."""

    def payload(self, spec: TensorSpec) -> Payload:
        payload = super().payload(spec)
        return self.other(dense(payload)) if spec.name == VICTIM else payload

    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@broken_stage(
    "a tensor comes flat",
    "test_what_comes_is_what_was_announced",
    says=r"layers\.1\.float32 \[6\] float32 in bucket 1, announced as .*\[2, 3\]",
)
class DeliversFlat(OtherPayload):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flatten()


@broken_stage(
    "a tensor comes in another dtype",
    "test_what_comes_is_what_was_announced",
    says=r"layers\.1\.float32 \[2, 3\] float64 in bucket 1",
)
class DeliversDoubles(OtherPayload):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double()


@broken_stage(
    "one bit is wrong",
    "test_the_bytes_are_those_of_the_source",
    says=r"layers\.1\.float32 \[2, 3\] float32 at byte 23 of 24: 0x",
)
class FlipsABit(OtherPayload):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(torch.uint8)[-1, -1] ^= 1
        return tensor


class Repoints(FilePayload):
    def read_into(self, out: torch.Tensor) -> None:
        other = torch.empty_like(out)
        super().read_into(other)
        out.data = other


@broken_stage(
    "other memory comes in the place of what was to be filled",
    "test_the_bytes_are_those_of_the_source",
    says=r"layers\.1\.float32 \[2, 3\] float32 at byte \d+ of 24: 0x00",
)
class PutsOtherMemoryThere(FileStage):
    def payload(self, spec: TensorSpec) -> Payload:
        return Repoints(spec, self.fds[spec.name]) if spec.name == VICTIM else super().payload(spec)


@broken_stage(
    "integers go through floats",
    "test_the_bytes_are_those_of_the_source",
    says=r"layers\.[01]\.int64 \[[12], 3\] int64 at byte",
)
class CastsIntegers(FileStage):
    def payload(self, spec: TensorSpec) -> Payload:
        payload = super().payload(spec)
        if spec.dtype is torch.int64:
            return dense(payload).to(torch.float64).to(torch.int64)
        return payload


@broken_stage(
    "equal shapes are taken for one tensor",
    "test_the_bytes_are_those_of_the_source",
    says=r"twin \[1, 3\] float32 at byte",
)
class MixesUpTwins(FileStage):
    def payload(self, spec: TensorSpec) -> Payload:
        alike = (one for one in self.manifest.tensors if replace(one, name=spec.name) == spec)
        return super().payload(replace(spec, name=next(alike).name))


@broken_stage(
    "a scalar becomes a vector",
    "test_empty_and_scalar_tensors_are_delivered",
    says=r"scalar of shape \[\] comes as \[1\]",
)
class NoScalars(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return replace(spec, shape=spec.shape or (1,))


@broken_stage(
    "an empty tensor is left out",
    "test_empty_and_scalar_tensors_are_delivered",
    says=r"empty of shape \[0\] does not come",
)
class NoEmpties(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return spec if spec.numel else None


@broken_stage(
    "only the first mebibyte is read",
    "test_a_huge_tensor_is_delivered_whole",
    says=r"huge \[10485760\] float32 at byte 104857[678] of",
)
class ReadsOnce(FileStage):
    class Short(FilePayload):
        def read(self, view: memoryview, at: int) -> int:
            return len(view) if at else super().read(view[: 2**20], at)

    def payload(self, spec: TensorSpec) -> Payload:
        return self.Short(spec, self.fds[spec.name])


@broken_stage(
    "a huge tensor is left out",
    "test_a_huge_tensor_is_delivered_whole",
    says="a tensor of 41943040 bytes does not come",
)
class NoHuge(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return spec if spec.size_bytes < 2**20 else None


@broken_stage(
    "there is one pass and no other", "test_buckets_start_afresh", says=r"delivered 5 tensors"
)
class OnePass(FileStage):
    _only: Iterator[Bucket] | None = None

    def buckets(self) -> Iterator[Bucket]:
        if self._only is None:
            self._only = super().buckets()
        return self._only


@broken_stage(
    "one buffer serves all buckets",
    "test_a_bucket_stays_valid_until_the_stage_is_left",
    says=r"kept while later ones came has changed: layers\.0\.float32",
)
class OneBuffer(FileStage):
    def buckets(self) -> Iterator[Bucket]:
        room = torch.empty(max(spec.size_bytes for spec in self.manifest.tensors) + 8).byte()
        for spec in self.manifest.tensors:
            out = room[: spec.size_bytes].view(spec.dtype).view(spec.shape)
            FilePayload(spec, self.fds[spec.name]).read_into(out)
            yield [(spec.name, out)]


@broken_stage(
    "a payload belongs to one thread",
    "test_payloads_can_be_read_again_and_on_any_thread",
    says=r"made in one thread",
)
class OneThread(FileStage):
    class Owned(FilePayload):
        owner: int | None = None

        def read_into(self, out: torch.Tensor) -> None:
            me = threading.get_ident()
            self.owner = self.owner or me
            if self.owner != me:
                raise RuntimeError("made in one thread, and read in another")
            super().read_into(out)

    def payload(self, spec: TensorSpec) -> Payload:
        return self.Owned(spec, self.fds[spec.name])


class OtherFloats(FileStage):
    """Computes with every float."""

    def payload(self, spec: TensorSpec) -> Payload:
        payload = super().payload(spec)
        return self.other(dense(payload)) if spec.dtype.is_floating_point else payload

    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@broken_stage(
    "zeros lose their sign",
    "test_zeros_keep_their_sign",
    says=r"zeros with a sign come with other bits: float32 \[8\] float32 at byte 7 of 32: 0x00, "
    r"wanted 0x80",
)
class UnsignedZeros(OtherFloats):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(tensor == 0, torch.zeros_like(tensor), tensor)


@broken_stage(
    "all NaNs become one",
    "test_nans_keep_their_bits",
    says=r"NaNs with a payload come with other bits: float32 .* float32 at byte",
)
class OneNan(OtherFloats):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor)


@broken_stage(
    "what is nearly zero becomes zero",
    "test_subnormal_numbers_are_kept",
    says=r"subnormal numbers come with other bits: float32 .* float32 at byte 0 of",
)
class FlushesToZero(OtherFloats):
    def other(self, tensor: torch.Tensor) -> torch.Tensor:
        tiny = torch.finfo(tensor.dtype).smallest_normal
        is_subnormal = (tensor != 0) & (tensor.abs() < tiny)
        return torch.where(is_subnormal, torch.zeros_like(tensor), tensor)


@broken_stage(
    "names lose what is usual in front of them",
    "test_names_come_as_they_are",
    says=r"module\.layers\.0\.weight, model\.layers\.1\.weight, .* is lost, and "
    r"layers\.0\.weight, .* comes instead",
)
class CutsPrefixes(Changed):
    def changed(self, spec: TensorSpec) -> TensorSpec | None:
        return replace(spec, name=self.cut(spec.name))

    def open_file(self, name: str, path: Path) -> None:
        super().open_file(self.cut(name), path)

    @staticmethod
    def cut(name: str) -> str:
        return name.removeprefix("module.").removeprefix("model.")
