"""The installed version, read from the package metadata so that it is written once."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("hotswap")
except PackageNotFoundError:  # a source tree on the path that was never installed
    __version__ = "0+unknown"
