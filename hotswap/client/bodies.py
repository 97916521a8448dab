"""Bodies of replies, bounded: whatever answers at an address must not fill the memory here.

Rule: a body is read as it comes and taken apart here, so that no piece of a compressed one is
larger than what is still allowed. Nobody is asked for compression; some send it all the same.
"""

from __future__ import annotations

import zlib

import httpx

__all__ = ["MAX_REPLY_BYTES", "Body", "TooLong"]

MAX_REPLY_BYTES = 16 * 2**20
"""The longest body of a reply that is read, after it was decompressed."""

# zlib's for "gzip or zlib, as its head says".
_EITHER = zlib.MAX_WBITS | 32
_PLAIN = ("", "identity")
_KNOWN = ("gzip", "x-gzip", "deflate")


class TooLong(Exception):
    """The body is longer than what is read, or compressed in a way that is not read."""


class Body:
    """Takes the pieces of one body as they came over the wire."""

    def __init__(self, response: httpx.Response) -> None:
        """Raises: TooLong for what is not begun with."""
        self._pieces: list[bytes] = []
        self._left = MAX_REPLY_BYTES
        encoding = response.headers.get("content-encoding", "").strip().lower()
        # httpx has it whole and decoded where a transport of the caller's own made it.
        self._decoder = None
        if encoding not in _PLAIN and not response.is_stream_consumed:
            if encoding not in _KNOWN:
                raise TooLong(f"a body in the encoding {encoding[:40]!r}, which was not asked for")
            self._decoder = zlib.decompressobj(_EITHER)

    def __repr__(self) -> str:
        return f"<Body {MAX_REPLY_BYTES - self._left} bytes>"

    def take(self, piece: bytes) -> None:
        """Raises: TooLong; httpx.DecodingError for what is not compressed as it says."""
        if self._decoder is not None:
            if self._decoder.eof:
                raise httpx.DecodingError("the compressed body has an end, and goes on")
            try:
                # One more than is allowed tells that there is more.
                piece = self._decoder.decompress(piece, self._left + 1)
            except zlib.error as error:
                raise httpx.DecodingError(str(error)) from error
        self._left -= len(piece)
        if self._left < 0:
            raise TooLong(f"a body of more than {MAX_REPLY_BYTES // 2**20} MiB, which was not read")
        self._pieces.append(piece)

    def whole(self) -> bytes:
        """All of it. Raises: httpx.DecodingError for a compressed one that ends early."""
        if self._decoder is not None and self._pieces and not self._decoder.eof:
            raise httpx.DecodingError("the compressed body has no end")
        return b"".join(self._pieces)
