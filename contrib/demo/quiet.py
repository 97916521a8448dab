"""transformers without its progress bars, its hints and its network."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__all__ = ["quiet_transformers"]


def quiet_transformers() -> Any:
    """Import transformers offline (slow: only where it is needed) and hush it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TQDM_DISABLE"] = "1"
    transformers: Any = import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
