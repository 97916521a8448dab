"""JSON objects from files that nobody vouches for.

Rule: what a reader could take in two ways is refused, duplicate keys above all.
"""

from __future__ import annotations

import json
from collections import Counter

from hotswap.errors import UpdateRejected

__all__ = ["parse_object"]


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} appears twice in one object")
    # A lone surrogate cannot be printed, logged or sent back in a reply.
    "".join(text for pair in pairs for text in pair if isinstance(text, str)).encode()
    return parsed


def parse_object(text: bytes, *, source: str) -> dict[str, object]:
    """Parse ``text`` as one JSON object in UTF-8.

    ``source`` names the file in messages. Raises: UpdateRejected for anything
    else, for a key that appears twice in an object, and for absurd nesting.
    """
    try:
        parsed: object = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise UpdateRejected(f"{source}: JSON nested too deeply, wanted a flat object") from None
    except ValueError as error:
        raise UpdateRejected(f"{source}: not valid JSON ({error}); write the file again") from None
    if not isinstance(parsed, dict):
        raise UpdateRejected(
            f"{source}: a JSON {type(parsed).__name__}, wanted an object; write the file again"
        )
    return parsed
