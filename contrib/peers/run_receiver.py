"""A peer's real receiver; ``python -m`` with FILE, LOCAL, BASE, SOURCE and TARGET."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

__all__ = ["main"]


def main(file: str, local: str, base: str, source: str, target: str) -> None:
    """Call ``pull`` of the module in ``file``, as a server does. Raises: ImportError."""
    spec = spec_from_file_location("peer_receiver", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.pull(
        local_checkpoint_dir=local, base_dir=base, source_dir=source, target_version=int(target)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
