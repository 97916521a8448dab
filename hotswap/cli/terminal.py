"""Texts as a terminal may see them: what servers, clients and files chose to say among them."""

from __future__ import annotations

import os

from hotswap.logs import one_line

__all__ = ["API_KEY", "ADMIN_KEY", "for_terminal"]

API_KEY, ADMIN_KEY = "HOTSWAP_API_KEY", "HOTSWAP_ADMIN_API_KEY"

# Shorter ones are in every text somewhere, and guard nothing.
_LEAST_HIDDEN = 4


def for_terminal(text: str) -> str:
    """``text`` on one line, which moves no cursor and turns nothing around, without the keys of
    this command: whoever is behind somebody must not read one that a server echoes."""
    for variable in (ADMIN_KEY, API_KEY):
        key = os.environ.get(variable, "").strip()
        if len(key) >= _LEAST_HIDDEN:
            text = text.replace(key, "***")
    return one_line(text)
