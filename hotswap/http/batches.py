"""One ``/generate`` body as the prompts it asks for, in the order of its replies."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from hotswap.http.errors import RequestInvalid, TooManyRequests
from hotswap.http.logprobs import logprobs_wanted
from hotswap.http.runs import encoded
from hotswap.http.schemas import GenerateBody, SamplingBody
from hotswap.http.shown import Shown
from hotswap.seams import SamplingParams

__all__ = ["MAX_BATCH", "Batch", "all_encoded", "expanded"]

MAX_BATCH = 256
"""Prompts of one request, each of its ``n`` samples counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What each run of one request is made of; the samples of a prompt stand together.

    ``rids`` pairs the id of each run with that of the client's request it is a part of,
    None for a request that is no batch. ``is_list`` says whether the reply is a list.
    """

    sources: Sequence[str | list[int]]
    samplings: Sequence[SamplingParams]
    rids: Sequence[tuple[str | None, str | None]]
    is_list: bool
    shown: Sequence[Shown]

    def __len__(self) -> int:
        return len(self.sources)


def expanded(body: GenerateBody, *, temperature: float) -> Batch:
    """Every run that ``body`` asks for; ``temperature`` where it says none.

    Raises: RequestInvalid for a body that contradicts itself, TooManyRequests.
    """
    sources, many = _sources(body)
    bodies = _sampling_bodies(body, len(sources), many=many)
    counts = [sampling.n for sampling in bodies]
    total = sum(counts)
    if total > MAX_BATCH:
        raise TooManyRequests(
            f"{total} prompts in one request, samples counted, wanted at most {MAX_BATCH}; "
            "send several requests"
        )
    is_list = many or total > 1
    return Batch(
        sources=[one for one, count in zip(sources, counts, strict=True) for _ in range(count)],
        samplings=[
            one.params(sample, temperature=temperature) for one in bodies for sample in range(one.n)
        ],
        rids=_rids(
            body.rid if body.request_id is None else body.request_id, counts, is_list=is_list
        ),
        is_list=is_list,
        shown=_shown(body, bodies, many=many),
    )


async def all_encoded(
    encode: Callable[[str], list[int]],
    sources: Sequence[str | list[int]],
    *,
    encoders: anyio.CapacityLimiter,
) -> list[list[int]]:
    """Token ids of each source; equal texts are encoded once. Raises: RequestInvalid."""
    known: dict[str, list[int]] = {}
    for source in sources:
        if isinstance(source, str) and source not in known:
            known[source] = await encoded(encode, source, encoders=encoders)
            # Many short texts are one long one: others get their turn in between.
            await anyio.lowlevel.checkpoint()
    return [known[source] if isinstance(source, str) else source for source in sources]


def _sources(body: GenerateBody) -> tuple[Sequence[str | list[int]], bool]:
    """The prompts, and whether they came as a list of prompts."""
    if (body.text is None) == (body.input_ids is None):
        seen = "neither" if body.text is None else "both"
        raise RequestInvalid(f"{seen} of text and input_ids given, wanted exactly one of them")
    if body.text is not None:
        if body.text == []:
            raise RequestInvalid("text is an empty list, wanted at least one prompt")
        return ([body.text], False) if isinstance(body.text, str) else (body.text, True)
    ids = body.input_ids or []
    if not ids:
        raise RequestInvalid("input_ids is empty, wanted at least one token id")
    tokens = [item for item in ids if isinstance(item, int)]
    prompts = [item for item in ids if isinstance(item, list)]
    if tokens and prompts:
        raise RequestInvalid(
            "input_ids has token ids beside lists of them, wanted one prompt "
            "(a list of ids) or a batch (a list of such lists)"
        )
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise RequestInvalid(f"input_ids[{number}] is empty, wanted at least one token id")
    return (prompts, True) if prompts else ([tokens], False)


def _sampling_bodies(body: GenerateBody, count: int, *, many: bool) -> Sequence[SamplingBody]:
    given = body.sampling_params
    if isinstance(given, SamplingBody):
        return [given] * count
    if not many or len(given) != count:
        prompts = f"{count} prompts" if many else "one prompt that is no list"
        raise RequestInvalid(
            f"sampling_params is a list of {len(given)} for {prompts}, "
            "wanted one object, or a list with one for each prompt"
        )
    return given


def _shown(body: GenerateBody, bodies: Sequence[SamplingBody], *, many: bool) -> list[Shown]:
    wanted = logprobs_wanted(body, len(bodies), many=many)
    return [
        Shown(
            keeps_stop=sampling.no_stop_trim,
            logprobs=logprobs,
            names_tokens=body.return_text_in_logprobs,
        )
        for sampling, logprobs in zip(bodies, wanted, strict=True)
        for _ in range(sampling.n)
    ]


def _rids(
    given: str | list[str] | None, counts: Sequence[int], *, is_list: bool
) -> list[tuple[str | None, str | None]]:
    """Of a batch ``rid_0``, ``rid_1``…, or the ids that were sent."""
    if not isinstance(given, list):
        return _numbered(given, sum(counts)) if is_list else [(given, None)]
    if len(given) != len(counts):
        raise RequestInvalid(
            f"rid has {len(given)} ids for {len(counts)} prompts, wanted one id for each, "
            "or one string"
        )
    return [
        pair
        for rid, count in zip(given, counts, strict=True)
        for pair in ([(rid, None)] if count == 1 else _numbered(rid, count))
    ]


def _numbered(rid: str | None, count: int) -> list[tuple[str | None, str | None]]:
    if rid == "":
        raise RequestInvalid("rid is empty, wanted a unique id or none")
    whole = rid or uuid.uuid4().hex
    return [(f"{whole}_{number}", whole) for number in range(count)]
