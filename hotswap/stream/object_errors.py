"""What an object store's refusals mean: worth another try, or for a person to see to."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from hotswap.object_url import ObjectUrl
from hotswap.stream.errors import SourceNotReady, SourceUnusable, StreamError

__all__ = ["explained", "is_missing_bucket", "is_passing", "is_refused", "is_taken", "no_bucket"]

_FOR_GOOD = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
# What stores' clients make of requests that are wrong, however often they are sent.
_WRONG = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EMSGSIZE, errno.ENAMETOOLONG, errno.ENOTEMPTY}
)
# Of clients that do not use the errors of the operating system: botocore, aiohttp, google.
_PASSING = frozenset(
    {
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectionError",
        "HTTPClientError",
        "HttpError",
        "IncompleteRead",
        "ResponseParserError",
        "TransportError",
    }
)


_LATER = (408, 429)
"""Of what HTTP calls the asker's fault, what may succeed later."""


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later: time-outs, lost connections, busy stores."""
    status = _status(error)
    if is_refused(error) or (status is not None and status < 500 and status not in _LATER):
        return False
    if isinstance(error, OSError):
        return not isinstance(error, _FOR_GOOD) and error.errno not in _WRONG
    return any(kind.__name__ in _PASSING for kind in type(error).__mro__)


def is_refused(error: BaseException) -> bool:
    """Whether whoever asked may not, or has not said who it is."""
    refused = isinstance(error, PermissionError) or _status(error) in (401, 403)
    return refused or _is_about_credentials(error)


def is_missing_bucket(error: BaseException) -> bool:
    """Whether it is not an object that is missing, but all that it could be in."""
    return any(code == "NoSuchBucket" for code in _codes(error))


def is_taken(error: BaseException) -> bool:
    """Whether a write was refused because there is an object already, which not every store says
    in the words that clients wait for."""
    return any(code in ("PreconditionFailed", "412") for code in _codes(error))


def explained(url: ObjectUrl, doing: str, error: BaseException, *, tries: int = 1) -> StreamError:
    """What ``error`` means for who wanted ``doing`` at ``url``."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, ImportError):
        return SourceUnusable(
            f"{url}: what reads {url.scheme}:// is not installed ({error}); "
            f"pip install 'hotswap[{_EXTRAS[url.scheme]}]'"
        )
    if is_missing_bucket(error):
        return no_bucket(url)
    if _is_about_credentials(error):
        return SourceUnusable(
            f"{url}: no credentials for {doing} ({said}); give them to the environment of this "
            f"process, such as {_VARIABLES[url.scheme]}, or to its machine"
        )
    if is_refused(error):
        return SourceUnusable(
            f"{url}: the store refuses {doing} ({said}); see that the credentials of this process "
            "are valid and may do that"
        )
    if is_passing(error) or isinstance(error, FileNotFoundError):
        times = f" {tries} times" if tries > 1 else ""
        return SourceNotReady(
            f"{url}: {doing} failed{times} ({said}); see that the store can be reached, and try "
            "again"
        )
    return SourceUnusable(f"{url}: the store cannot do it: {doing} ({said})")


def no_bucket(url: ObjectUrl) -> StreamError:
    """The bucket of ``url`` is not there."""
    return SourceUnusable(f"{url}: there is no bucket {url.bucket}; create it, or correct the URL")


_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "memory": "none",
}
_EXTRAS = {"s3": "s3", "gs": "gs", "memory": "fsspec"}


def _is_about_credentials(error: BaseException) -> bool:
    return any(
        "Credential" in kind.__name__ or kind.__name__ in ("RefreshError", "TokenRetrievalError")
        for kind in type(error).__mro__
    )


def _status(error: BaseException) -> int | None:
    """That of HTTP, where gcsfs tells it: as a number, or, of a refusal, in words."""
    if isinstance(error, OSError) and error.errno is None and str(error).startswith("Forbidden:"):
        return 403
    code = getattr(error, "code", None)
    return code if isinstance(code, int) else None


def _codes(error: BaseException | None) -> Iterator[object]:
    """What the store itself said, as its client keeps it beside the error or behind it."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            yield response["Error"].get("Code")
        error = error.__cause__
