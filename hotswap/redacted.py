"""Secrets that a source brings along, and texts without them.

Rules:

* Whatever is shown, logged or kept of a URL has neither what stands before its host nor its
  query: both may be credentials (``user:password@host``, ``?X-Amz-Signature=...``).
* What a source's own errors repeat of it without the URL is hidden as well, in the errors of
  that update.

There is no torch in here: the command line sets up its log with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

__all__ = ["HIDDEN", "hide_in_error", "secrets_of", "without_passwords", "without_secrets"]

HIDDEN = "***"
"""What stands in the place of a secret."""

# To the last at before the path; a password that is not escaped may have slashes in it.
_USER_OF_URL = re.compile(r"(?<=://)(?:[^/\s?#]+@|[^/\s@:?#]*:\S*@)")
_QUERY_OF_URL = re.compile(r"(://[^\s?'\"]*\?)[^\s'\"<>)\\]+")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Less than this is in every text somewhere.
_LEAST_CHARACTERS = 4


def without_passwords(text: str) -> str:
    """``text``; what its URLs have before the host, and after a ``?``, is hidden."""
    if "://" not in text:
        return text
    return _QUERY_OF_URL.sub(rf"\g<1>{HIDDEN}", _USER_OF_URL.sub(f"{HIDDEN}@", text))


def secrets_of(source: str) -> tuple[str, ...]:
    """What the URL ``source`` brings that may be a secret, longest first; none for a path.

    As it is written there, and as it is meant (``%2F`` is ``/``).
    """
    found = {
        form
        for secret in _secrets(source)
        for form in (secret, unquote(secret))
        if len(form) >= _LEAST_CHARACTERS
    }
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """``text`` without any of ``secrets``, nor those of the URLs in it."""
    text = without_passwords(text)
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def hide_in_error(error: BaseException, source: str) -> None:
    """Take what ``source`` brings out of the message of ``error`` and of all that led to it.

    Every text among the arguments of each is replaced where it has a secret in it.
    """
    secrets = secrets_of(source)
    seen: set[int] = set()
    todo: list[BaseException | None] = [error] if "://" in source else []
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        _clean(one, secrets)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _clean(error: BaseException, secrets: tuple[str, ...]) -> None:
    cleaned = tuple(
        without_secrets(part, secrets) if isinstance(part, str) else part for part in error.args
    )
    if cleaned != error.args:
        error.args = cleaned


def _secrets(source: str) -> Iterator[str]:
    if _URL.match(source) is None:
        return
    before = _USER_OF_URL.search(source)
    if before is not None:
        user, _, password = before[0].removesuffix("@").partition(":")
        # A token may come alone.
        yield password or user
    for part in source.partition("?")[2].replace("#", "&").split("&"):
        yield part.partition("=")[2] or part
