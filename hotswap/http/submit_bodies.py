"""Bodies of the asynchronous request routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from hotswap.http.batches import Batch, expanded
from hotswap.http.errors import RequestInvalid, TooManyRequests
from hotswap.http.json_body import MAX_SHOWN_NAMES, converted, ignored_names
from hotswap.http.schemas import INNER_BODIES, GenerateBody, Rid, SamplingBody

__all__ = ["MAX_SUBMITTED", "AbortBody", "CancelBody", "ResultBody", "SubmitBody", "SubmitManyBody"]

MAX_SUBMITTED = 32
"""Requests of one ``/submit_many``."""

MAX_RESULT_WAIT_S = 300


class SubmitBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/submit``: one prompt; ``rid`` is another name of ``request_id``."""

    request_id: Rid | None = None
    rid: Rid | None = None
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingBody = SamplingBody()
    max_decode_steps: Annotated[int, Meta(ge=1)] | None = None
    beam_width: int = 1
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    return_text_in_logprobs: bool = False

    def batch(self, *, temperature: float) -> Batch:
        """As the one run that it asks for; ``temperature`` where it says none.

        Raises: RequestInvalid.
        """
        if self.beam_width != 1:
            raise RequestInvalid(
                f"beam_width is {self.beam_width}, wanted 1: there is no beam search here; "
                "submit one request for each sequence"
            )
        sampling = self.sampling_params
        if sampling.n != 1:
            raise RequestInvalid(
                f"sampling_params.n is {sampling.n}, wanted 1: submit one request a sample"
            )
        if self.max_decode_steps is not None:
            sampling = msgspec.structs.replace(sampling, max_new_tokens=self.max_decode_steps)
        return expanded(
            GenerateBody(
                text=self.text,
                input_ids=None if self.input_ids is None else list(self.input_ids),
                sampling_params=sampling,
                rid=self.request_id if self.request_id is not None else self.rid,
                return_logprob=self.return_logprob,
                logprob_start_len=self.logprob_start_len,
                top_logprobs_num=self.top_logprobs_num,
                token_ids_logprob=None
                if self.token_ids_logprob is None
                else [*self.token_ids_logprob],
                return_text_in_logprobs=self.return_text_in_logprobs,
            ),
            temperature=temperature,
        )


class SubmitManyBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/submit_many``: bodies of ``/submit``."""

    requests: list[dict[str, object]]

    def batch(self, *, temperature: float) -> Batch:
        """Every one of them as one batch. Raises: RequestInvalid, TooManyRequests."""
        if not self.requests:
            raise RequestInvalid("requests is empty, wanted at least one request")
        if len(self.requests) > MAX_SUBMITTED:
            raise TooManyRequests(
                f"{len(self.requests)} requests in one call, wanted at most {MAX_SUBMITTED}; "
                "send several calls"
            )
        return _joined([self._one(at, temperature) for at in range(len(self.requests))])

    def ignored(self) -> list[str]:
        """Fields that had no effect in one request at least."""
        each = [ignored_names(one, SubmitBody, inner=INNER_BODIES) for one in self.requests]
        return sorted({name for names in each for name in names})[:MAX_SHOWN_NAMES]

    def _one(self, number: int, temperature: float) -> Batch:
        try:
            return converted(self.requests[number], SubmitBody).batch(temperature=temperature)
        except RequestInvalid as error:
            raise type(error)(f"requests[{number}]: {error}") from error


class CancelBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/cancel``: ``rid`` is another name of ``request_id``."""

    request_id: Rid | None = None
    rid: Rid | None = None

    def wanted(self) -> str:
        """The id. Raises: RequestInvalid without one."""
        rid = self.request_id or self.rid
        if not rid:
            raise RequestInvalid("request_id is missing, wanted the id of a request")
        return rid


class ResultBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/result/{request_id}``: seconds that the answer may wait for the end."""

    timeout: Annotated[float, Meta(ge=0, le=MAX_RESULT_WAIT_S)] = 0.0


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """``/abort_request``: one request or batch, with ``prefix`` all of a prefix, or all.

    Without ``prefix`` the dialect says which of the two an id means.
    """

    rid: Rid = ""
    prefix: bool | None = None
    abort_all: bool = False
    abort_message: Annotated[str, Meta(max_length=4096)] | None = None


def _joined(batches: Sequence[Batch]) -> Batch:
    return Batch(
        sources=[source for batch in batches for source in batch.sources],
        samplings=[sampling for batch in batches for sampling in batch.samplings],
        rids=[pair for batch in batches for pair in batch.rids],
        shown=[one for batch in batches for one in batch.shown],
        is_list=True,
    )
