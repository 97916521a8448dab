"""Which server a command talks to, and with which keys.

Keys come by their variables only: a flag could be read by every user of the machine.
"""

from __future__ import annotations

import argparse
import os

from hotswap.cli.terminal import ADMIN_KEY, API_KEY
from hotswap.client import AsyncClient, Client, ServerKind

__all__ = ["async_client", "blocking_client"]

_ADDRESS = "http://127.0.0.1:30000"


def blocking_client(options: argparse.Namespace) -> Client:
    """For ``--url``, ``HOTSWAP_URL`` or the address that ``serve`` has by default.

    Raises: ValueError for an address that is none.
    """
    kind, api, admin = _kind(options), _key(API_KEY), _key(ADMIN_KEY)
    return Client(_url(options), api_key=api, admin_key=admin, server=kind)


def async_client(options: argparse.Namespace) -> AsyncClient:
    """The same, on asyncio."""
    kind, api, admin = _kind(options), _key(API_KEY), _key(ADMIN_KEY)
    return AsyncClient(_url(options), api_key=api, admin_key=admin, server=kind)


def _url(options: argparse.Namespace) -> str:
    return str(options.url or os.environ.get("HOTSWAP_URL") or _ADDRESS)


def _kind(options: argparse.Namespace) -> ServerKind | None:
    return None if options.server == "auto" else ServerKind(options.server)


def _key(variable: str) -> str | None:
    return os.environ.get(variable) or None
