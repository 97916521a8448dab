"""Libraries without progress bars, hints, network and spinning threads."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__all__ = ["quiet_environment", "quiet_transformers"]


def quiet_environment() -> None:
    """Set what is read once, at import: call it before torch is imported.

    Threads that spin while they wait would take the server's cores.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TQDM_DISABLE"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def quiet_transformers() -> Any:
    """Import transformers (slow: only where it is needed) and hush it."""
    transformers: Any = import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
