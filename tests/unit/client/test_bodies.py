"""No body of a reply fills the memory of the client, however long or compressed it comes."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import httpx
import pytest

from hotswap.client import AsyncClient, Client, OutcomeUnknown, ReplyMalformed, RequestRefused
from hotswap.client.bodies import MAX_REPLY_BYTES, Body, TooLong
from tests.unit.answering import Answer, answering
from tests.unit.client.script import status

TRUTH = status().body
UPDATE = "/update_weights_from_disk"
MIB = 2**20
SAID = r"a body of more than 16 MiB, which was not read"


def bomb(size_mib: int = 64) -> bytes:
    """Blanks, which JSON may begin with, as some kilobytes of gzip."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    blanks = b" " * MIB
    return b"".join(packer.compress(blanks) for _ in range(size_mib)) + packer.flush()


LONG = TRUTH + b" " * MAX_REPLY_BYTES
BOMB = bomb()
ENDLESS: list[tuple[dict[str, str], bytes]] = [({}, LONG), ({"content-encoding": "gzip"}, BOMB)]
BODIES = pytest.mark.parametrize(("headers", "body"), ENDLESS, ids=["long", "bomb"])


def lying(
    path: str, headers: dict[str, str], body: bytes, code: int = 200
) -> Callable[..., Answer]:
    return lambda asked: (code, headers, body) if asked == path else (200, {}, TRUTH)


@BODIES
async def test_a_look_is_an_error_that_says_so(headers: dict[str, str], body: bytes) -> None:
    with answering(lying("/status", headers, body)) as url:
        with Client(url) as client, pytest.raises(ReplyMalformed, match=SAID):
            client.state()
        async with AsyncClient(url) as other:
            with pytest.raises(ReplyMalformed, match=SAID):
                await other.state()


@BODIES
async def test_an_update_is_looked_for_in_the_state(headers: dict[str, str], body: bytes) -> None:
    with answering(lying(UPDATE, headers, body)) as url:
        with Client(url) as client, pytest.raises(OutcomeUnknown, match=SAID):
            client.update("/b")
        async with AsyncClient(url) as other:
            with pytest.raises(OutcomeUnknown, match=SAID):
                await other.update("/b")


@BODIES
def test_a_refusal_has_its_status_all_the_same(headers: dict[str, str], body: bytes) -> None:
    with (
        answering(lying("/status", headers, body, 404)) as url,
        Client(url, server="hotswap") as client,
        pytest.raises(RequestRefused, match=rf"answered 404: {SAID}") as caught,
    ):
        client.state()
    assert caught.value.status == 404


@pytest.mark.parametrize("packed", [gzip.compress(TRUTH), zlib.compress(TRUTH)])
async def test_what_is_compressed_unasked_is_read(packed: bytes) -> None:
    encoding = "gzip" if packed.startswith(b"\x1f") else "deflate"
    with answering(lying("/status", {"content-encoding": encoding}, packed)) as url:
        with Client(url) as client:
            assert client.state().ready
        async with AsyncClient(url) as other:
            assert (await other.state()).ready


def test_nobody_is_asked_to_compress() -> None:
    asked = list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["accept-encoding"])
        return httpx.Response(200, content=TRUTH)

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with http, Client("http://server", http=http) as client:
        assert client.state().ready
    assert asked == ["identity"] * 2


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_an_encoding_that_is_not_read_is_named(encoding: str) -> None:
    with (
        answering(lying("/status", {"content-encoding": encoding}, b"x")) as url,
        Client(url) as client,
        pytest.raises(ReplyMalformed, match=f"a body in the encoding '{encoding}', which was not"),
    ):
        client.state()


async def test_events_that_are_compressed_are_none() -> None:
    headers = {"content-encoding": "gzip", "content-type": "text/event-stream"}
    with answering(lying("/hotswap/v1/events", headers, BOMB)) as url:
        with (
            Client(url, server="hotswap") as client,
            client.events() as events,
            pytest.raises(ReplyMalformed, match="text/event-stream gzip, wanted text/event-stream"),
        ):
            next(events)
        async with AsyncClient(url, server="hotswap") as other, other.events() as feed:
            with pytest.raises(ReplyMalformed, match="gzip, wanted"):
                await anext(feed)


# --- one body


def response(encoding: str | None = "gzip") -> httpx.Response:
    headers = {} if encoding is None else {"content-encoding": encoding}
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(b""))


def streamed(encoding: str | None = "gzip") -> Body:
    made = response(encoding)
    made.is_stream_consumed = False
    return Body(made)


def test_a_bomb_is_never_in_memory() -> None:
    body = streamed()
    tracemalloc.start()
    try:
        with pytest.raises(TooLong, match=SAID):
            body.take(BOMB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAX_REPLY_BYTES


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 16])
def test_a_body_is_the_same_in_whatever_pieces_it_comes(piece_bytes: int) -> None:
    packed = gzip.compress(TRUTH)
    body = streamed()
    for at in range(0, len(packed), piece_bytes):
        body.take(packed[at : at + piece_bytes])
    assert body.whole() == TRUTH
    assert repr(body) == f"<Body {len(TRUTH)} bytes>"


def test_the_longest_body_is_read() -> None:
    body = streamed(None)
    body.take(b"x" * MAX_REPLY_BYTES)
    assert len(body.whole()) == MAX_REPLY_BYTES
    with pytest.raises(TooLong):
        body.take(b"x")


def test_a_compressed_body_without_its_end_or_beyond_it_is_broken() -> None:
    packed = gzip.compress(TRUTH)
    body = streamed()
    body.take(packed[:-1])
    with pytest.raises(httpx.DecodingError, match="has no end"):
        body.whole()
    body.take(packed[-1:])
    assert body.whole() == TRUTH
    with pytest.raises(httpx.DecodingError, match="goes on"):
        body.take(b"x")
    with pytest.raises(httpx.DecodingError):
        streamed().take(b"not gzip")
    assert streamed().whole() == b""
