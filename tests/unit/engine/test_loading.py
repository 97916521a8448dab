from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import torch

from hotswap.engine import EmbeddedEngine
from hotswap.engine.config import parse_config
from hotswap.engine.loading import choose_device, choose_dtype, load_model
from hotswap.errors import UpdateRejected
from hotswap.testing.checkpoints import make_checkpoint
from tests.unit.engine.conftest import Make


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [
        ("auto", torch.bfloat16),
        ("float32", torch.float32),
        ("float16", torch.float16),
        (torch.float64, torch.float64),
    ],
)
def test_the_dtype_is_the_checkpoints_unless_asked(
    asked: str | torch.dtype, dtype: torch.dtype, checkpoint: Make
) -> None:
    model = load_model(checkpoint(dtype=torch.bfloat16), dtype=asked, device="cpu").model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model.model.rotary_emb.inv_freq.dtype is torch.float32
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_loading_leaves_no_thread_to_whoever_called(checkpoint: Make) -> None:
    # Large enough for torch to want all its threads for a cast.
    directory = checkpoint(dtype=torch.bfloat16, vocab_size=2048)
    counts: list[int] = []

    def load() -> None:
        torch.set_num_threads(2)
        counts.append(_threads())
        load_model(directory, dtype="float32", device="cpu")
        # Torch's workers learn that their thread has ended, and end a moment later. They
        # tell nobody, so that there is nothing to wait for but the count itself.
        deadline = time.monotonic() + 30
        while _threads() > counts[0] and time.monotonic() < deadline:
            time.sleep(0.001)
        counts.append(_threads())

    threads = torch.get_num_threads()
    # A thread that has had no workers of torch yet.
    caller = threading.Thread(target=load)
    try:
        caller.start()
        caller.join()
    finally:
        torch.set_num_threads(threads)
    before, after = counts
    assert after == before


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_unknown_choices_are_named(checkpoint: Make) -> None:
    config = parse_config(json.loads((checkpoint() / "config.json").read_text()))
    with pytest.raises(ValueError, match="dtype 'int4' is unknown, wanted auto or one of float32"):
        choose_dtype("int4", config)
    assert choose_device("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        assert choose_device("auto") == torch.device("cpu")
        with pytest.raises(ValueError, match="torch sees no CUDA"):
            choose_device("cuda")


def test_describe_is_json_and_says_what_is_served(checkpoint: Make) -> None:
    directory = checkpoint(arch="qwen3", dtype=torch.bfloat16)
    described = EmbeddedEngine.from_directory(directory, device="cpu").describe()
    assert json.loads(json.dumps(described)) == described
    assert described["model_path"] == str(directory)
    assert described["model_type"] == "qwen3"
    assert described["architectures"] == ["Qwen3ForCausalLM"]
    assert described["vocab_size"] == 320
    assert described["max_position_embeddings"] == 2048
    assert (described["dtype"], described["device"]) == ("bfloat16", "cpu")


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path)
    (directory / "config.json").unlink()
    with pytest.raises(UpdateRejected, match=r"config\.json"):
        EmbeddedEngine.from_directory(directory)


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UpdateRejected, match=r"layers\.2\."):
        EmbeddedEngine.from_directory(directory)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ('{"eos_token_id": 3}', {3}),
        ('{"eos_token_id": [3, 4]}', {3, 4}),
        ('{"eos_token_id": null}', set()),
        ("{}", set()),
        (None, set()),
    ],
)
def test_ends_of_text_of_the_generation_configuration(
    content: str | None, ids: set[int], tmp_path: Path
) -> None:
    directory = make_checkpoint(tmp_path, eos=False)
    path = directory / "generation_config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert load_model(directory, device="cpu").eos_token_ids == ids
    described = EmbeddedEngine.from_directory(directory, device="cpu").describe()
    assert described["eos_token_ids"] == sorted(ids)


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "x"}', "\x80", '{"a":1,"a":2}'])
def test_an_odd_generation_configuration_is_named(content: str, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path)
    (directory / "generation_config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises((ValueError, UpdateRejected), match=r"generation_config\.json"):
        load_model(directory, device="cpu")


def test_frequencies_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, rope={"rope_theta": 1e-300})
    with pytest.raises(ValueError, match=r"frequencies that are not finite.*rope_theta=1e-300"):
        load_model(directory, device="cpu")
