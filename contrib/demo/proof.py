"""The proof: a swapped server against a fresh one, and against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from contrib.demo.client import Client
from contrib.demo.quiet import quiet_transformers
from contrib.demo.streams import Load

__all__ = [
    "PROMPTS",
    "Check",
    "Evidence",
    "against_fresh",
    "against_transformers",
    "collect",
    "checkpoints_differ",
    "nothing_lost",
    "transformers_tokens",
]

NEW_TOKENS = 16

PROMPTS = (
    "The capital of France is",
    "Once upon a time",
    "Two plus two equals",
    "Water is made of",
    "In 1969,",
    "def main():",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a server shows of its weights: a checksum a tensor, greedy tokens a prompt."""

    checksums: dict[str, str]
    tokens: dict[str, list[int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The first prompt and its continuation."""
        return PROMPTS[0] + self.texts[PROMPTS[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the proof."""

    claim: str
    holds: bool
    detail: str


async def collect(client: Client) -> Evidence:
    """Ask a server for its evidence; the prompts run beside each other."""
    evidence = Evidence(checksums=await client.checksums())

    async def ask(prompt: str) -> None:
        reply = await client.generate(prompt, max_new_tokens=NEW_TOKENS)
        evidence.tokens[prompt] = list(reply["output_ids"])
        evidence.texts[prompt] = reply["text"]

    async with anyio.create_task_group() as asking:
        for prompt in PROMPTS:
            asking.start_soon(ask, prompt)
    return evidence


def nothing_lost(load: Load) -> Check:
    """Every request of the streams ended by itself."""
    return Check(
        claim="no request was lost or aborted",
        holds=not load.lost and not load.aborted and load.done > 0,
        detail=f"{load.done} done",
    )


def checkpoints_differ(a: Evidence, b: Evidence) -> Check:
    """A and B disagree; otherwise a swap that did nothing would pass."""
    same = [name for name, checksum in a.checksums.items() if b.checksums.get(name) == checksum]
    replies = _differing(a.tokens, b.tokens)
    return Check(
        claim="A and B differ, so that a swap that did nothing would show",
        holds=len(same) < len(a.checksums) and len(replies) > len(PROMPTS) // 2,
        detail=f"{len(a.checksums) - len(same)} of {len(a.checksums)} tensors, "
        f"{len(replies)} of {len(PROMPTS)} replies",
    )


def against_fresh(version: str, swapped: Sequence[Evidence], fresh: Evidence) -> list[Check]:
    """Every swap to ``version`` gave what a server started on it has."""
    sums = [name for one in swapped for name in _differing(one.checksums, fresh.checksums)]
    tokens = [prompt for one in swapped for prompt in _differing(one.tokens, fresh.tokens)]
    return [
        _check(f"{version}: checksums as on a fresh server", sums, len(fresh.checksums), "tensors"),
        _check(f"{version}: greedy tokens as on a fresh server", tokens, len(PROMPTS), "prompts"),
    ]


def against_transformers(
    version: str, swapped: Sequence[Evidence], reference: dict[str, list[int]]
) -> Check:
    """Every swap to ``version`` generates what transformers generates from it."""
    differing = [prompt for one in swapped for prompt in _differing(one.tokens, reference)]
    return _check(f"{version}: greedy tokens as transformers'", differing, len(PROMPTS), "prompts")


def transformers_tokens(directory: Path, dtype: str, device: str) -> dict[str, list[int]]:
    """Greedy tokens of every prompt by transformers, from the checkpoint itself."""
    transformers = quiet_transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    model = model.to(device).eval()
    # What a checkpoint's generation_config.json prefers is not greedy decoding.
    greedy = transformers.GenerationConfig(
        do_sample=False,
        repetition_penalty=1.0,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=0,
    )
    chosen: dict[str, list[int]] = {}
    for prompt in PROMPTS:
        given = tokenizer(prompt, return_tensors="pt").to(device)
        output = model.generate(**given, generation_config=greedy)
        chosen[prompt] = output[0, given["input_ids"].shape[1] :].tolist()
    return chosen


def _differing(seen: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Keys whose values differ, or that only one side has."""
    return [key for key in seen | wanted if seen.get(key) != wanted.get(key)]


def _check(claim: str, differing: list[str], total: int, things: str) -> Check:
    detail = f"all {total} {things}" if not differing else f"not so for {differing[0]!r}"
    if len(differing) > 1:
        detail += f" and {len(differing) - 1} more"
    return Check(claim=claim, holds=total > 0 and not differing, detail=detail)
