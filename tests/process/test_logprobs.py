"""Log-probabilities over the wire, before and after a swap: transformers is the judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.reference import Reference
from tests.process.served import Served

pytestmark = pytest.mark.process

PROMPT = [1 + number * 7 % 250 for number in range(120)]


def values_of(rows: Sequence[Sequence[Any]]) -> list[float]:
    return [row[0] for row in rows]


def check(meta: dict[str, Any], output_ids: Sequence[int], judge: Reference) -> None:
    whole = [*PROMPT, *output_ids]
    likely = judge.logits(whole).log_softmax(-1)[:-1]
    wanted = likely.gather(1, torch.tensor(whole[1:])[:, None])[:, 0].tolist()
    first, *inputs = meta["input_token_logprobs"]
    assert first == [None, PROMPT[0], None]
    assert [row[1] for row in inputs] == PROMPT[1:]
    assert values_of(inputs) == pytest.approx(wanted[: len(PROMPT) - 1], abs=1e-4)
    outputs = meta["output_token_logprobs"]
    assert [row[1] for row in outputs] == list(output_ids)
    assert values_of(outputs) == pytest.approx(wanted[len(PROMPT) - 1 :], abs=1e-4)
    tops = meta["output_top_logprobs"]
    for row, top in zip(likely[len(PROMPT) - 1 :], tops, strict=True):
        assert values_of(top) == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


async def test_a_trainer_reads_what_its_own_model_says(served: Served, a: Path, b: Path) -> None:
    asked: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    drawn = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    for directory in (a, b):
        judge = Reference(directory)
        await served.client.update(directory)
        # The second time most of the prompt is in the prefix cache.
        for _ in range(2):
            reply = await served.client.done(
                "/generate", input_ids=PROMPT, sampling_params=drawn, **asked
            )
            check(reply["meta_info"], reply["output_ids"], judge)


async def test_a_prompt_is_scored_without_a_reply(served: Served, a: Path) -> None:
    reply = await served.client.done(
        "/generate",
        input_ids=PROMPT,
        sampling_params={"max_new_tokens": 0, "temperature": 0, "skip_special_tokens": False},
        return_logprob=True,
        logprob_start_len=0,
    )
    assert (reply["output_ids"], reply["meta_info"]["completion_tokens"]) == ([], 0)
    likely = Reference(a).logits(PROMPT).log_softmax(-1)
    wanted = [likely[at, token].item() for at, token in enumerate(PROMPT[1:])]
    assert values_of(reply["meta_info"]["input_token_logprobs"][1:]) == pytest.approx(
        wanted, abs=1e-4
    )


async def test_a_submitted_request_is_scored_like_one_of_generate(served: Served) -> None:
    body: dict[str, Any] = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 8, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 3,
        "top_logprobs_num": 20,
        "token_ids_logprob": [5, 9],
    }
    generated = await served.client.done("/generate", **body)
    status, reply = await served.client.post("/submit", **body)
    assert status == 202
    status, result = await served.client.get(f"/result/{reply['request_id']}?timeout=60")
    assert status == 200
    one, two = generated["meta_info"], result["meta_info"]
    assert {name for name in one if name.endswith("logprobs")} == {
        f"{side}_{kind}_logprobs"
        for side in ("input", "output")
        for kind in ("token", "top", "token_ids")
    }
    for side in ("input", "output"):
        rows = one[f"{side}_token_logprobs"], two[f"{side}_token_logprobs"]
        assert [row[1] for row in rows[0]] == [row[1] for row in rows[1]]
        for kind in ("top", "token_ids"):
            lists = zip(one[f"{side}_{kind}_logprobs"], two[f"{side}_{kind}_logprobs"], strict=True)
            for left, right in lists:
                assert (left is None) == (right is None)
                # The prefix cache may have been met: the last digits are its own.
                assert values_of(left or []) == pytest.approx(values_of(right or []), abs=1e-4)


async def test_samples_of_a_seed_differ_and_come_again(served: Served) -> None:
    sampling = {"n": 4, "max_new_tokens": 12, "temperature": 1.2, "seed": 11, "ignore_eos": True}

    async def samples() -> list[list[int]]:
        replies = await served.client.done(
            "/generate", input_ids=PROMPT[:9], sampling_params=sampling
        )
        return [reply["output_ids"] for reply in replies]

    first = await samples()
    assert len({tuple(ids) for ids in first}) == 4
    assert await samples() == first
