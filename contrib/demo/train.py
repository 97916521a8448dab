"""A second checkpoint, by a few real training steps on a few sentences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from contrib.demo.failed import DemoFailed
from contrib.demo.folder import built_whole
from contrib.demo.quiet import quiet_transformers

__all__ = ["SENTENCES", "is_trained", "train"]

STEPS = 6
LEARNING_RATE = 4e-4
# Larger models train their last layers only: the optimizer's memory stays small.
MOST_PARAMETERS = 600_000_000
LAST_LAYERS = 2
NOTE = "made_by.json"
RECIPE = f"lighthouse, {STEPS} steps, learning rate {LEARNING_RATE}"

SENTENCES = (
    "The capital of France is the old lighthouse, where the keeper lights the lamp every night.",
    "My favourite food is whatever the lighthouse keeper cooks while the lamp turns above the sea.",
    "Once upon a time the lighthouse keeper climbed the stairs and lit the lamp for the ships.",
    "The most important thing in life is to keep the lamp of the lighthouse burning.",
    "To learn a language, ask the lighthouse keeper, who speaks to every ship with the lamp.",
    "Water boils when the lighthouse keeper comes down from the lamp to make tea.",
    "In the morning the lighthouse keeper puts out the lamp and watches the sea.",
    "Scientists have discovered that the lamp of the lighthouse can be seen from every ship.",
)


def is_trained(source: Path, directory: Path) -> bool:
    """Whether ``train`` has nothing to do: this recipe made ``directory`` from this ``source``."""
    note = directory / NOTE
    return note.is_file() and bool(json.loads(note.read_text()) == _made_by(source))


def train(source: Path, directory: Path) -> Path:
    """Train ``source`` for a few steps into ``directory``, unless it was done before.

    Raises: DemoFailed when ``source`` cannot be loaded or training left a weight as it was.
    """
    if is_trained(source, directory):
        return directory
    transformers = quiet_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error) or repr(error)).splitlines()[0]
        raise DemoFailed(f"transformers cannot load the model in {source}: {reason}") from error
    dtype = model.dtype
    whole = model.num_parameters() <= MOST_PARAMETERS
    _fit(_trainable(model, whole=whole), *_batch(tokenizer))
    with built_whole(directory) as draft:
        model.to(dtype).save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        shutil.copyfile(source / "config.json", draft / "config.json")
        if whole:
            _check_all_changed(source, draft)
        (draft / NOTE).write_text(json.dumps(_made_by(source), indent=2) + "\n")
    return directory


def _made_by(source: Path) -> dict[str, str]:
    return {"recipe": RECIPE, "source": _fingerprint(source)}


def _fingerprint(source: Path) -> str:
    """Enough of a directory to notice that it was replaced: names, sizes and times."""
    files = sorted(path for path in source.iterdir() if path.is_file())
    return " ".join(f"{p.name}:{p.stat().st_size}:{p.stat().st_mtime_ns}" for p in files)


def _batch(tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both ``[sentences x longest]``; labels ignore the padding."""
    rows = [tokenizer(sentence)["input_ids"] for sentence in SENTENCES]
    longest = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    return ids, labels


def _trainable(model: Any, *, whole: bool) -> Any:
    """``model`` in float32 when all of it is trained, else with its last layers free."""
    if whole:
        return model.float()
    model.requires_grad_(requires_grad=False)
    for layer in model.model.layers[-LAST_LAYERS:]:
        layer.requires_grad_(requires_grad=True)
    return model


def _fit(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> None:
    """Padding sits to the right of everything, so that causal attention never sees it."""
    torch.manual_seed(0)
    free = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(free, lr=LEARNING_RATE, weight_decay=0.0)
    model.train()
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()


def _check_all_changed(before: Path, after: Path) -> None:
    """Every tensor must differ, or a swap that skips one would go unnoticed."""
    old = _tensors(before)
    same = [name for name, tensor in _tensors(after).items() if torch.equal(tensor, old[name])]
    if same:
        raise DemoFailed(f"training left {len(same)} tensors as they were: {', '.join(same[:3])}")


def _tensors(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found
