"""The swap oracle on CUDA: equal to a fresh server, in place, and fast.

``make test-gpu`` runs these and says so where there is no CUDA; elsewhere the marker
deselects them. None of them skips.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from hotswap.testing.checkpoints import make_checkpoint, make_labelled_checkpoint
from tests.process.evidence import PROMPTS, Evidence, assert_equal, assert_everything_differs
from tests.process.failing import fail_at, watched
from tests.process.http_client import Streams
from tests.process.in_process import load, logits_of, serving
from tests.process.reference import Reference

pytestmark = pytest.mark.gpu

CASES = [(arch, tied) for arch in ("llama", "qwen2", "qwen3") for tied in (False, True)]


def addresses(model: torch.nn.Module) -> dict[str, int]:
    """Where each parameter and buffer lies."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.data_ptr() for name, tensor in named}


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    """TF32 would round what the comparison with transformers is about."""
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("mode", ["staged", "direct"])
@pytest.mark.parametrize(("arch", "tied"), CASES)
async def test_a_swapped_model_equals_a_fresh_one_at_the_same_addresses(
    tmp_path: Path, arch: str, tied: bool, mode: str
) -> None:
    a, b = (
        make_checkpoint(tmp_path / f"{n}", arch=arch, tied=tied, seed=n, shards=n) for n in (1, 2)
    )
    fresh: list[Evidence] = []
    for directory in (a, b):
        async with serving(load(directory, device="cuda")) as server:
            fresh.append(await Evidence.of(server.client))
    assert_everything_differs(*fresh)

    loaded = load(a, device="cuda")
    assert all(parameter.is_cuda for parameter in loaded.model.parameters())
    before = addresses(loaded.model)
    reference = Reference(b)
    async with serving(loaded, load_mode=mode) as server:
        for number in (1, 0, 1):
            await server.client.update((a, b)[number])
            assert_equal(await Evidence.of(server.client), fresh[number])
        assert addresses(loaded.model) == before
        await server.client.pause("retract")
        for prompt in PROMPTS:
            difference = logits_of(loaded.model, prompt) - reference.logits(prompt)
            assert difference.abs().max().item() <= 1e-3


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_streams_live_through_swaps(tmp_path: Path, mode: str) -> None:
    labelled = [make_labelled_checkpoint(tmp_path / f"{label}", label=label) for label in range(2)]
    async with (
        serving(load(labelled[0], device="cuda")) as server,
        Streams(server.client) as streams,
    ):
        running = [streams.start(prompt, 400) for prompt in PROMPTS[:8]]
        for number in (1, 2, 3):
            for stream in running:
                await stream.has_tokens(number * 20)
            await server.client.update(
                labelled[number % 2], weight_version=f"{number}", pause_mode=mode
            )
        for stream in running:
            reply = await stream.finished()
            for span in reply["meta_info"]["weight_versions"]:
                labels = {token % 2 for token in reply["output_ids"][span["start"] : span["end"]]}
                assert labels == {int(span["version"] or 0) % 2}


async def test_a_failed_write_is_rolled_forward(tmp_path: Path) -> None:
    a, b = (make_checkpoint(tmp_path / f"{n}", seed=n) for n in (1, 2))
    async with serving(load(b, device="cuda")) as server:
        fresh = await Evidence.of(server.client)
    async with serving(watched(load(a, device="cuda"), before_write=fail_at(9))) as server:
        await server.client.update(b)

        assert await server.client.updates() == {"disk/rolled_forward": 1}
        assert_equal(await Evidence.of(server.client), fresh)


async def test_the_commit_is_as_fast_as_the_bus(tmp_path: Path) -> None:
    """``paused_ms`` against a plain copy from pageable host memory of the same bytes."""
    a, b = (
        make_checkpoint(
            tmp_path / f"{seed}",
            seed=seed,
            dtype=torch.bfloat16,
            hidden_size=2048,
            intermediate_size=8192,
            num_layers=8,
            num_heads=16,
        )
        for seed in (1, 2)
    )
    loaded = load(a, device="cuda")
    async with serving(loaded) as server:
        paused_ms = [
            (await server.client.update(directory))["paused_ms"] for directory in (b, a, b, a)
        ]
    sources = [torch.empty_like(p, device="cpu").copy_(p) for p in loaded.model.parameters()]
    copied_ms: list[float] = []
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for source, parameter in zip(sources, loaded.model.parameters(), strict=True):
            parameter.data.copy_(source)
        torch.cuda.synchronize()
        copied_ms.append((time.perf_counter() - began) * 1000.0)

    assert min(paused_ms) <= 1.5 * min(copied_ms) + 10.0, (paused_ms, copied_ms)
