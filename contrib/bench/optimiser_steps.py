"""What a real optimiser step changes in bf16: SmolLM2-135M, AdamW, one step further.

``python -m contrib.bench.optimiser_steps RATE DIRECTORY`` trains and writes the bf16 weights before
and after its last step below ``before`` and ``after``.

As trainers do, AdamW moves float32 weights, and what is published is their rounding. A checkpoint
of bf16 has each of them in the middle of what rounds to it, where small steps change nothing for
long; after a long run they lie anywhere in there, and so they are spread before it begins. The
moments are those of ten steps, on texts of this repository's documentation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from contrib.bench.paths import BENCH_DIR, REPOSITORY
from contrib.bench.pull_stream import Tensors, tensors_of
from contrib.demo.quiet import quiet_environment, quiet_transformers
from contrib.demo.smollm2 import unpack

__all__ = ["RATES", "changed_share", "spread_within_rounding", "steps_of"]

MODULE = "contrib.bench.optimiser_steps"

RATES = (1e-6, 1e-5)
"""The learning rates."""

_STEPS = 10
_TEXTS = 4
_TOKENS = 128
_TEXT_PAGES = REPOSITORY / "docs" / "reference"


def steps_of(rate: float) -> tuple[Tensors, Tensors]:
    """Every tensor before and after a step at the learning rate ``rate``; made when absent."""
    home = BENCH_DIR / f"smollm2-adamw-{rate:g}"
    if not home.is_dir():
        unfinished = home.with_name(f"{home.name}.{os.getpid()}.tmp")
        try:
            # A process of its own: gigabytes of moments, and threads that only training needs.
            subprocess.run(
                [sys.executable, "-m", MODULE, str(rate), str(unfinished)],
                cwd=REPOSITORY,
                check=True,
                stdout=sys.stderr,
            )
            unfinished.rename(home)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return tensors_of(home / "before"), tensors_of(home / "after")


def changed_share(old: Tensors, new: Tensors) -> float:
    """How many of all bf16 elements differ, from 0 to 1."""
    changed = sum(
        int(np.count_nonzero(old[name].view(np.uint16) != new[name].view(np.uint16)))
        for name in old
    )
    return changed / sum(len(tensor) // 2 for tensor in old.values())


def spread_within_rounding(weights: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """float32 values anywhere in what rounds to bf16 ``weights``."""
    bits = weights.float().view(torch.int32)
    # Half a step of bf16 to either side, without the ends: they round to the even neighbour.
    bits += torch.randint(-(2**15) + 1, 2**15, bits.shape, generator=generator, dtype=torch.int32)
    spread = bits.view(torch.float32)
    # Below zero itself there is no smaller number to begin with, but one of another sign.
    return torch.where(weights == 0, weights.float(), spread)


def _texts(tokenizer: Any) -> Iterator[torch.Tensor]:
    """Batches of token ids [texts x tokens], each used once."""
    words = "\n".join(page.read_text() for page in sorted(_TEXT_PAGES.glob("*.md")))
    ids = tokenizer.encode(words)[: _STEPS * _TEXTS * _TOKENS]
    yield from torch.tensor(ids).reshape(_STEPS, _TEXTS, _TOKENS)


def _train(rate: float, directory: Path) -> None:
    transformers = quiet_transformers()
    source = unpack(BENCH_DIR / "smollm2")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(spread_within_rounding(parameter.bfloat16(), generator))
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    before: Mapping[str, torch.Tensor] = {}
    for ids in _texts(transformers.AutoTokenizer.from_pretrained(source)):
        optimiser.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        before = _rounded(model)
        optimiser.step()
    for name, tensors in (("before", before), ("after", _rounded(model))):
        (directory / name).mkdir(parents=True)
        save_file(dict(tensors), directory / name / "model.safetensors")


def _rounded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().bfloat16() for name, one in model.named_parameters()}


if __name__ == "__main__":
    quiet_environment()
    _train(float(sys.argv[1]), Path(sys.argv[2]))
