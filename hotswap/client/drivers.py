"""Run steps: blocking, or on asyncio. All of the client's I/O is in here."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import anyio
import httpx

from hotswap.client.bodies import Body, TooLong
from hotswap.client.bounded import LONGEST_WAIT_S, pieces_within, within
from hotswap.client.effects import (
    CloseStream,
    Content,
    Effect,
    NoReply,
    OpenStream,
    ReadStream,
    Reply,
    Send,
    Sleep,
    Steps,
)
from hotswap.uninterrupted import uninterrupted

__all__ = ["AsyncDriver", "Driver"]

T = TypeVar("T")

_CONNECT_S = 5.0

# The request cannot have left: no connection, or none that was free.
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Driver:
    """Runs steps on an ``httpx.Client``, and holds one stream at most. Any one thread."""

    def __init__(
        self, http: httpx.Client, url: str, *, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._http = http
        self._url = url
        self._pause = pause
        self._stream: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def __repr__(self) -> str:
        return f"<Driver {self._url}>"

    def run(self, steps: Steps[T]) -> T:
        """To the end; returns and raises what the steps do."""
        answer: object = None
        failure: NoReply | None = None
        try:
            while True:
                effect = steps.send(answer) if failure is None else steps.throw(failure)
                try:
                    answer, failure = self._perform(effect), None
                except NoReply as error:
                    failure = error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def _perform(self, effect: Effect) -> object:
        try:
            match effect:
                case Send():
                    return self._sent(effect)
                case Sleep(seconds=seconds):
                    self._pause(min(seconds, LONGEST_WAIT_S))
                case OpenStream():
                    request = _stream_request(self._http, self._url, effect)
                    with within(effect.open_s):
                        self._stream = self._http.send(request, stream=True, follow_redirects=False)
                    self._pieces = _raw(self._stream)
                    return _reply(self._stream)
                case ReadStream():
                    return next(self._pieces, b"")
                case CloseStream():
                    self.close_stream()
        except (httpx.LocalProtocolError, UnicodeEncodeError):
            # Not as its cause either: what it says may repeat a header, and so a key.
            raise _unsendable() from None
        except httpx.RequestError as error:
            raise _no_reply(error) from error
        return None

    def _sent(self, asked: Send) -> Reply:
        content = None if asked.content is None else iter(asked.content.pieces)
        request = _request(self._http, self._url, asked, content)
        with within(asked.timeout_s):
            response = self._http.send(request, stream=True, follow_redirects=False)
            try:
                body = Body(response)
                for piece in pieces_within(_raw(response)):
                    body.take(piece)
                return _reply(response, body.whole())
            except TooLong as flaw:
                return _reply(response, flaw=str(flaw))
            finally:
                response.close()

    def close_stream(self) -> None:
        """Let go of the stream, if there is one."""
        stream, self._stream, self._pieces = self._stream, None, iter(())
        if stream is not None:
            stream.close()


class AsyncDriver:
    """Runs steps on an ``httpx.AsyncClient``, under asyncio; one stream at most."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self._stream: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    def __repr__(self) -> str:
        return f"<AsyncDriver {self._url}>"

    async def run(self, steps: Steps[T]) -> T:
        """To the end, or until cancelled; returns and raises what the steps do."""
        answer: object = None
        failure: NoReply | None = None
        try:
            while True:
                effect = steps.send(answer) if failure is None else steps.throw(failure)
                try:
                    answer, failure = await self._perform(effect), None
                except NoReply as error:
                    failure = error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def run_to_the_end(self, steps: Steps[T]) -> T:
        """The same, whoever stops waiting for it."""
        return await uninterrupted(self.run(steps))

    async def _perform(self, effect: Effect) -> object:
        try:
            match effect:
                case Send():
                    pieces = None if effect.content is None else _piece_by_piece(effect.content)
                    request = _request(self._http, self._url, effect, pieces)
                    with anyio.fail_after(effect.timeout_s):
                        return await self._answered(request)
                case Sleep(seconds=seconds):
                    await anyio.sleep(seconds)
                case OpenStream():
                    request = _stream_request(self._http, self._url, effect)
                    with anyio.fail_after(effect.open_s):
                        self._stream = await self._http.send(
                            request, stream=True, follow_redirects=False
                        )
                    self._pieces = _araw(self._stream)
                    return _reply(self._stream)
                case ReadStream():
                    return b"" if self._pieces is None else await anext(self._pieces, b"")
                case CloseStream():
                    await self.close_stream()
        except (httpx.LocalProtocolError, UnicodeEncodeError):
            # Not as its cause either: what it says may repeat a header, and so a key.
            raise _unsendable() from None
        except httpx.RequestError as error:
            raise _no_reply(error) from error
        except TimeoutError:
            # httpx's own bound each read only.
            raise NoReply("ReadTimeout: the reply was not whole in time", sent=True) from None
        return None

    async def _answered(self, request: httpx.Request) -> Reply:
        response = await self._http.send(request, stream=True, follow_redirects=False)
        try:
            body = Body(response)
            async for piece in _araw(response):
                body.take(piece)
            return _reply(response, body.whole())
        except TooLong as flaw:
            return _reply(response, flaw=str(flaw))
        finally:
            await response.aclose()

    async def close_stream(self) -> None:
        """Let go of the stream, if there is one."""
        stream, self._stream, self._pieces = self._stream, None, None
        if stream is not None:
            await stream.aclose()


def _raw(response: httpx.Response) -> Iterator[bytes]:
    """Its body as it comes; whole where a transport of the caller's own had it at once."""
    return iter([response.content]) if response.is_stream_consumed else response.iter_raw()


def _araw(response: httpx.Response) -> AsyncIterator[bytes]:
    return response.aiter_bytes() if response.is_stream_consumed else response.aiter_raw()


async def _piece_by_piece(content: Content) -> AsyncIterator[bytes]:
    for piece in content.pieces:
        yield cast(bytes, piece)


def _request(
    http: httpx.Client | httpx.AsyncClient, url: str, asked: Send, content: Any
) -> httpx.Request:
    headers = dict(asked.headers)
    if asked.content is not None:
        headers["content-type"] = asked.content.media_type
        # Without it the body would go in chunks, and the server not know its length before.
        headers["content-length"] = str(asked.content.length)
    return http.build_request(
        asked.method,
        url + asked.path,
        json=None if asked.body is None else dict(asked.body),
        content=content,
        headers=_as_sent(headers),
        timeout=_limit(asked.timeout_s),
    )


def _stream_request(
    http: httpx.Client | httpx.AsyncClient, url: str, asked: OpenStream
) -> httpx.Request:
    headers = _as_sent({"accept": "text/event-stream", **asked.headers})
    timeout = _limit(asked.timeout_s)
    return http.build_request("GET", url + asked.path, headers=headers, timeout=timeout)


def _limit(seconds: float) -> httpx.Timeout:
    seconds = min(seconds, LONGEST_WAIT_S)
    return httpx.Timeout(seconds, connect=min(_CONNECT_S, seconds))


def _as_sent(headers: Mapping[str, str]) -> httpx.Headers:
    """As UTF-8, which an id to resume after may be. Raises: UnicodeEncodeError."""
    # What is compressed may be any length once it is not.
    sent = {"accept-encoding": "identity", **headers}
    return httpx.Headers([(name.encode(), value.encode("utf-8")) for name, value in sent.items()])


def _reply(response: httpx.Response, body: bytes = b"", *, flaw: str | None = None) -> Reply:
    return Reply(status=response.status_code, headers=_headers(response), body=body, flaw=flaw)


def _headers(response: httpx.Response) -> dict[str, str]:
    shown: dict[str, Any] = dict(response.headers)
    return {name.lower(): str(value) for name, value in shown.items()}


def _no_reply(error: httpx.RequestError) -> NoReply:
    said = str(error) or "no reason given"
    return NoReply(f"{type(error).__name__}: {said}", sent=not isinstance(error, _NEVER_SENT))


def _unsendable() -> NoReply:
    return NoReply(
        "LocalProtocolError: HTTP does not allow one of its headers, or it has what is no Unicode; "
        "wanted visible characters in the headers of the httpx client that was given and in the id "
        "to begin after, and text in the rest",
        sent=False,
        final=True,
    )
