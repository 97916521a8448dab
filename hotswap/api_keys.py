"""Keys that clients have to send. A key itself is never kept: only its SHA-256 is.

So nothing that shows settings (a log, a reply, a traceback, a debugger) can show a key.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

__all__ = ["ApiKey"]

# What client libraries send that were given no key.
_NOT_A_KEY = "None"


class ApiKey:
    """One key. It can be compared with what a client sent, and not be read back.

    Raises: ValueError, which does not repeat the key, for one that no client could
    send, or that every client without a key sends.
    """

    __slots__ = ("_digest",)

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("the key is empty, wanted one or more characters")
        if not all("!" <= character <= "~" for character in text):
            # Headers are stripped of blanks, and clients encode other letters differently.
            raise ValueError(
                "the key has a blank, a control character or a letter outside ASCII in it, "
                "wanted visible ASCII characters only"
            )
        if text == _NOT_A_KEY:
            raise ValueError(
                f"the key is {_NOT_A_KEY!r}, which clients send that have none; choose another"
            )
        self._digest = sha256(text.encode()).digest()

    def __repr__(self) -> str:
        return "<ApiKey>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiKey) and hmac.compare_digest(self._digest, other._digest)

    def __hash__(self) -> int:
        return hash(self._digest)

    def matches(self, sent: bytes) -> bool:
        """Whether ``sent`` is the key; takes the same time whatever it is."""
        return hmac.compare_digest(self._digest, sha256(sent).digest())
