"""What a store refuses or cannot do now: what is tried again, and what is said."""

from __future__ import annotations

import errno

import pytest

from hotswap.object_url import ObjectUrl
from hotswap.stream import (
    PullMode,
    SourceNotReady,
    SourceUnusable,
    StreamError,
    published_versions,
)
from hotswap.stream.layout import INDEX
from hotswap.stream.object_store import ObjectStore
from hotswap.stream.objects import Objects
from tests.unit.stream.faulty_store import URL
from tests.unit.stream.stored_stream import Stored, failing


def test_requests_are_sent_again_within_a_budget(stored: Stored) -> None:
    busy = OSError(errno.EBUSY, "Please reduce your request rate.")
    stored.fs.before = failing(busy, TimeoutError(), busy)
    assert stored.pull(1) is PullMode.SEED
    assert stored.pauses == [0.1, 0.2, 0.4]
    stored.pauses.clear()
    stored.fs.before = failing(*[busy] * 1000)
    error = stored.refused(2)
    assert isinstance(error, SourceNotReady)
    assert error.retryable
    assert f"{URL}/weight_v000002/{INDEX}: looking at it failed 5 times" in str(error)
    assert error.local_version == 1
    for _ in range(3):
        stored.refused(2)
    # What is left of the budget is gone, and each request gets one try.
    assert len(stored.pauses) < 12
    assert repr(stored.place.store).startswith("<ObjectStore memory:// 0.")
    before = len(stored.pauses)
    stored.refused(2)
    assert len(stored.pauses) == before


class NoCredentialsError(Exception):
    """Named as botocore names its own."""


class HTTPClientError(Exception):
    """Named as botocore names what it raises for lost connections."""


class HttpError(Exception):
    """Named as gcsfs names what the store said."""

    def __init__(self, code: int) -> None:
        super().__init__(f"it says {code}")
        self.code = code


class ClientError(Exception):
    """Named as botocore names what the store said."""

    def __init__(self, code: str = "NoSuchBucket") -> None:
        super().__init__("The specified bucket does not exist")
        self.response = {"Error": {"Code": code}}


def no_bucket() -> FileNotFoundError:
    """As s3fs raises it: what the store said is behind it."""
    error = FileNotFoundError("The specified bucket does not exist")
    error.__cause__ = ClientError()
    return error


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (PermissionError("Access Denied"), SourceUnusable, "the store refuses looking at it"),
        (NoCredentialsError("Unable to locate"), SourceUnusable, "no credentials for looking"),
        (no_bucket(), SourceUnusable, "there is no bucket bucket; create it, or correct the URL"),
        (OSError(errno.EINVAL, "InvalidURI"), SourceUnusable, "the store cannot do it"),
        (OSError("Forbidden: b/bucket/o"), SourceUnusable, "the store refuses looking at it"),
        (HttpError(401), SourceUnusable, "the store refuses looking at it (HttpError: it says 401"),
        (HttpError(400), SourceUnusable, "the store cannot do it"),
        (HttpError(429), SourceNotReady, "failed 5 times (HttpError: it says 429)"),
        (HttpError(503), SourceNotReady, "failed 5 times (HttpError: it says 503)"),
        (ValueError("unknown region"), SourceUnusable, "the store cannot do it"),
        (HTTPClientError("reset"), SourceNotReady, "failed 5 times (HTTPClientError: reset)"),
        (ConnectionResetError(), SourceNotReady, "failed 5 times (ConnectionResetError)"),
    ],
)
def test_what_a_store_refuses_says_what_to_do(
    stored: Stored, fault: Exception, kind: type[StreamError], message: str
) -> None:
    stored.fs.before = failing(*[fault] * 100)
    error = stored.refused(1)
    assert type(error) is kind
    assert message in str(error)
    # An aggregate and the version are looked for, and each of the two requests has its tries.
    assert len(stored.pauses) == (8 if kind is SourceNotReady else 0)
    with pytest.raises(kind):
        published_versions(stored.place)


def test_a_second_index_is_told_from_other_refusals(stored: Stored) -> None:
    """Also where the store does not say which condition it was."""
    error = OSError(errno.EINVAL, "PreconditionFailed")
    error.__cause__ = ClientError("PreconditionFailed")
    index = stored.file(1, INDEX)
    stored.fs.before = failing(error, error)
    with pytest.raises(FileExistsError, match=str(index)):
        index.store.put(index.url, b"{}", new=True)
    with pytest.raises(SourceUnusable, match="the store cannot do it: writing it"):
        index.store.put(index.url, b"{}")


def test_gs_has_its_own_ways(stored: Stored) -> None:
    pauses = list[float]()
    place = Objects(
        ObjectUrl.parse("gs://b/run"), ObjectStore("gs", fs=stored.fs, pause=pauses.append)
    )
    # It lists an empty prefix, and says 404 of a bucket.
    assert published_versions(place) == ()
    stored.fs.before = failing(FileNotFoundError("b/b/o"))
    with pytest.raises(SourceUnusable, match="there is no bucket b; create it"):
        published_versions(place)
    stored.fs.before = failing(NoCredentialsError())
    with pytest.raises(SourceUnusable, match="such as GOOGLE_APPLICATION_CREDENTIALS, or to its"):
        published_versions(place)
    # Its client has six tries of its own.
    stored.fs.before = failing(HttpError(503))
    with pytest.raises(SourceNotReady, match=r"listing it failed \(HttpError"):
        published_versions(place)
    assert pauses == []
