"""Bodies of requests, as msgspec structs. Fields not named here are ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hotswap.http.errors import RequestInvalid
from hotswap.seams import SamplingParams
from hotswap.types import MAX_LABEL_CHARACTERS, PauseMode

__all__ = [
    "INNER_BODIES",
    "MAX_LABEL_CHARACTERS",
    "CheckerBody",
    "DiskUpdateBody",
    "FlushBody",
    "GenerateBody",
    "NoBody",
    "PauseBody",
    "RelabelBody",
    "SamplingBody",
    "WeightByNameBody",
    "label",
    "pause_mode",
    "sample_seed",
    "swap_mode",
]

Count = Annotated[int, Meta(ge=0)]

# Every one of them is compared with every token of the reply.
_MAX_STOPS = 64
_MAX_STOP_CHARACTERS = 16 * 1024
_MAX_STOP_TOKEN_IDS = 4096

# Both come back in every reply, and in every event of a stream.
_MAX_RID_CHARACTERS = 512

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Rid = Annotated[str, Meta(max_length=_MAX_RID_CHARACTERS)]


class NoBody(msgspec.Struct, frozen=True, kw_only=True):
    """A route without parameters."""


class SamplingBody(msgspec.Struct, frozen=True, kw_only=True):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: Count = 128
    min_new_tokens: Count = 0
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = -1
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] = 1.0
    seed: int | None = None
    sampling_seed: int | None = None
    stop: str | list[str] = ""
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    n: Annotated[int, Meta(ge=1)] = 1

    def params(self, sample: int = 0, *, temperature: float = 0.0) -> SamplingParams:
        """As the engine takes them, for one of ``n`` samples, from 0 on.

        Each draws with a seed of its own, which follows from the client's; the first
        has that one itself. ``temperature`` is for a body that has none.
        Raises: RequestInvalid.
        """
        if self.temperature is not None:
            temperature = self.temperature
        if not math.isfinite(temperature):
            raise RequestInvalid("temperature is not finite, wanted 0 or more")
        self._check_sizes()
        seed = self.seed if self.seed is not None else self.sampling_seed
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            temperature=temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=sample_seed(seed, sample),
            stop=self._stops,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
        )

    @property
    def _stops(self) -> tuple[str, ...]:
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        return tuple(dict.fromkeys(stop for stop in stops if stop))

    def _check_sizes(self) -> None:
        stops, ids = self._stops, len(self.stop_token_ids)
        if len(stops) > _MAX_STOPS:
            raise RequestInvalid(f"stop has {len(stops)} strings, wanted at most {_MAX_STOPS}")
        characters = sum(map(len, stops))
        if characters > _MAX_STOP_CHARACTERS:
            raise RequestInvalid(
                f"stop has {characters} characters in all, wanted at most {_MAX_STOP_CHARACTERS}"
            )
        if ids > _MAX_STOP_TOKEN_IDS:
            raise RequestInvalid(
                f"stop_token_ids has {ids} ids, wanted at most {_MAX_STOP_TOKEN_IDS}"
            )


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/generate``: one prompt as ``text`` or as ``input_ids``, or a list of such.

    ``request_id`` is another name of ``rid``, and wins, as in GR.
    """

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingBody | list[SamplingBody] = SamplingBody()
    stream: bool = False
    rid: Rid | list[Rid] | None = None
    request_id: Rid | list[Rid] | None = None
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | list[int] = -1
    top_logprobs_num: int | list[int] = 0
    token_ids_logprob: list[int | list[int]] | None = None
    return_text_in_logprobs: bool = False


INNER_BODIES: Mapping[str, type[msgspec.Struct]] = {"sampling_params": SamplingBody}
"""Fields of a request for text that are objects, or lists of them."""


class PauseBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/pause_generation``."""

    mode: str = PauseMode.ABORT.value


class FlushBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/flush_cache``: ``timeout`` is accepted; the answer never waits."""

    timeout: Annotated[float, Meta(ge=0)] = 0.0


class DiskUpdateBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/update_weights_from_disk``; ``model_dir`` is another name of ``model_path``, and
    ``strategy`` reads it, by default the one of ``--load-strategy``."""

    model_path: str | None = None
    model_dir: str | None = None
    strategy: Annotated[str, Meta(max_length=MAX_LABEL_CHARACTERS)] | None = None
    weight_version: Annotated[str, Meta(max_length=MAX_LABEL_CHARACTERS)] | int | None = None
    token_step: int | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    pause_mode: str | None = None

    def source(self) -> str:
        """The checkpoint directory. Raises: RequestInvalid."""
        path = self.model_path or self.model_dir
        if not path:
            raise RequestInvalid(
                "model_path is missing, wanted the directory of a checkpoint "
                "(model_dir is accepted too)"
            )
        if "\0" in path:
            raise RequestInvalid("model_path has a null character in it, wanted a directory")
        return path

    def swap_mode(self) -> PauseMode | None:
        """How requests in flight are met. Raises: RequestInvalid."""
        return swap_mode(self.pause_mode, abort=self.abort_all_requests)


class WeightByNameBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/get_weights_by_name``."""

    name: str
    truncate_size: Count = 100


class CheckerBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/weights_checker``. Nothing here is quantised, so no error of it is to be allowed."""

    action: str = "checksum"
    allow_quant_error: bool = False
    selector: Literal["all", "target"] = "all"
    skip_tensor_list: list[str] = []


class RelabelBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/update_weight_version``."""

    new_version: Annotated[str, Meta(max_length=MAX_LABEL_CHARACTERS)] | int
    abort_all_requests: bool = True


def sample_seed(seed: int | None, sample: int) -> int | None:
    """The seed of one of ``n`` samples, from 0 on; the first has ``seed`` itself.

    No sum: seeds that stand side by side must not share samples.
    """
    if seed is None or sample == 0:
        return seed
    return int.from_bytes(blake2b(f"{seed} {sample}".encode(), digest_size=8).digest())


def label(version: str | int | None) -> str | None:
    """A version label as the opaque string that it is."""
    return None if version is None else str(version)


def pause_mode(value: str, field: str) -> PauseMode:
    """``value`` as a mode. Raises: RequestInvalid naming the modes."""
    try:
        return PauseMode(value)
    except ValueError as error:
        wanted = ", ".join(PauseMode)
        raise RequestInvalid(f"{field} is {value!r}, wanted one of: {wanted}") from error


def swap_mode(mode: str | None, *, abort: bool) -> PauseMode | None:
    """How an update meets requests in flight: as ``mode`` says, or (``abort``) by ending them.

    None refuses beside them. Raises: RequestInvalid.
    """
    if abort:
        return PauseMode.ABORT
    return None if mode is None else pause_mode(mode, "pause_mode")
