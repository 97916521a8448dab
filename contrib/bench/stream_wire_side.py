"""``pull_side`` without numba, installed or not."""

from __future__ import annotations

import runpy
import sys
from typing import Any, cast

__all__ = ["MODULE"]

MODULE = "contrib.bench.stream_wire_side"

if __name__ == "__main__":
    # What Python looks up there as None cannot be imported.
    cast(dict[str, Any], sys.modules)["numba"] = None
    runpy.run_module("contrib.bench.pull_side", run_name="__main__")
