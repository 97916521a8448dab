"""What one client knows of its server, and how it asks: keys, time, retries.

Rules of retrying:

* A request that the server cannot have seen may be sent again, whatever it is.
* A proxy that says that its server did not answer (502, 503, 504) is no reply.
* One that it may have seen may be sent again when twice is the same as once.
* ``busy`` says that nothing was begun: it may be sent again.
* No retry begins after the time that the caller gave.
* Nobody waits without a word: the first retry of a call is logged, and then some.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import httpx

from hotswap.api_keys import ApiKey
from hotswap.client.effects import NoReply, Reply, Send, Steps, send, sleep
from hotswap.client.errors import NoAnswer, OutcomeUnknown, RequestRefused
from hotswap.client.replies import (
    command_error,
    fields_of,
    is_of_proxy,
    is_success,
    message_of,
    no_page,
)
from hotswap.errors import Busy, HotswapError, ShuttingDown
from hotswap.logs import without_passwords

__all__ = ["Budget", "Fence", "ServerKind", "Session", "answered", "is_busy", "tell_of_retry"]

_log = logging.getLogger("hotswap.client")

_RETRY_S = 0.5
_LEAST_TIMEOUT_S = 0.001
_LEAST_RETRY_S = 0.1
_LEAST_HIDDEN = 4

# A call that is over sooner tells of its trouble by its error.
_SHORT_CALL_S = 2.0
_TELL_EVERY_S = 30.0

_IN_PLACE = "in_place"


class ServerKind(StrEnum):
    """Whose server it is: hotswap's, in whichever dialect, or SGLang's own."""

    HOTSWAP = "hotswap"
    SGLANG = "sglang"


@dataclass(slots=True, kw_only=True, eq=False)
class Fence:
    """One ``paused()`` that is open, and its mode. Two of them are never the same.

    ``in_doubt``: its pause may be in effect, although it was refused.
    """

    mode: str | None = None
    in_doubt: bool = False


class Budget:
    """So many seconds from now on, for everything that one call does; infinitely many at most.

    Raises: ValueError for no time at all, which ``name`` is to blame for.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float], *, name: str = "within_s"
    ) -> None:
        if not seconds > 0:
            raise ValueError(f"{name} is {seconds:g}, wanted more than 0 seconds")
        self.seconds = seconds
        now = clock()
        self._clock = clock
        self._end = now + seconds
        self._silent_until = self._end if seconds <= _SHORT_CALL_S else now

    def __repr__(self) -> str:
        return f"<Budget {self.left_s:.1f} of {self.seconds:g} s left>"

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when there are none."""
        return max(0.0, self._end - self._clock())

    def pause_s(self, seconds: float) -> float | None:
        """How long to wait before asking again: ``seconds``, or half of what is left when that
        is not more; None when no time is left to ask in."""
        left_s = self.left_s
        if left_s <= _LEAST_RETRY_S:
            return None
        return seconds if seconds < left_s else left_s / 2

    def is_time_to_tell(self) -> bool:
        """Whether a retry now is worth a line in the log: the first, then one in 30 s."""
        now = self._clock()
        if now < self._silent_until:
            return False
        self._silent_until = now + _TELL_EVERY_S
        return True


class Session:
    """Address, keys and findings of one client. No I/O.

    ``fences`` are the ``paused()`` contexts that are open now.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        admin_key: str | None = None,
        kind: ServerKind | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address: str = _address(url)
        # What is said of it: a password in it is for the server alone.
        self.url: str = without_passwords(self.address)
        self.kind = kind
        self.clock = clock
        self.fences: list[Fence] = []
        self._api_key = _sendable(api_key, name="api_key")
        self._admin_key = _sendable(admin_key, name="admin_key")
        self._shown_keys = _ways_to_show(self._admin_key, self._api_key)

    def __repr__(self) -> str:
        return f"<Session {self.url} {self.kind or 'not asked yet'}>"

    def budget(self, within_s: float, *, name: str = "within_s") -> Budget:
        """Raises: ValueError for no time at all."""
        return Budget(within_s, self.clock, name=name)

    @property
    def is_frozen(self) -> bool:
        """Whether requests are frozen in place, keys and values included.

        They are not once another mode has met them, whichever fence is left first.
        """
        modes = [fence.mode for fence in self.fences]
        return bool(modes) and all(mode == _IN_PLACE for mode in modes)

    def key_headers(self, *, admin: bool) -> dict[str, str]:
        """The one key that the route asks for, if we have one."""
        key = (self._admin_key or self._api_key) if admin else self._api_key
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def received(self, reply: Reply, *, admin: bool) -> Reply:
        """``reply`` to a request with ``key_headers``, as others may look at it."""
        name = "admin_key" if admin and self._admin_key is not None else "api_key"
        sent = self.key_headers(admin=admin)
        return replace(reply, key=name if sent else None, hide=self._without_keys)

    def _without_keys(self, text: str) -> str:
        for key in self._shown_keys:
            text = text.replace(key, "***")
        return text

    def wants_fence(self, told: bool | None) -> bool:
        """Whether an update pauses and continues by itself, around several requests.

        Never inside a fence. Unless told, only for SGLang: hotswap does it in one request,
        and reads the checkpoint before the pause. The kind has to be known.
        """
        if self.fences:
            return False
        return self.kind is ServerKind.SGLANG if told is None else told

    def ask_once(
        self,
        path: str,
        budget: Budget,
        *,
        body: Mapping[str, object] | None = None,
        probe: bool = False,
    ) -> Steps[Reply]:
        """GET, or POST of ``body``, without a retry; a 503 is what a ``probe`` may answer.

        Raises: NoReply.
        """
        admin = body is not None
        reply = yield from send(
            Send(
                method="POST" if admin else "GET",
                path=path,
                body=body,
                timeout_s=max(budget.left_s, _LEAST_TIMEOUT_S),
                headers=self.key_headers(admin=admin),
            )
        )
        received = self.received(reply, admin=admin)
        return received if probe and reply.status == 503 else answered(received)

    def ask(
        self,
        path: str,
        budget: Budget,
        *,
        body: Mapping[str, object] | None = None,
        patient: bool = True,
        probe: bool = False,
    ) -> Steps[Reply]:
        """The same, of something that may be sent twice: retried while there is time.

        ``patient`` also waits for a server that is busy with another command.
        Returns the reply, which may be an error. Raises: NoAnswer; ReplyMalformed for a page.
        """
        lost = False
        while True:
            try:
                reply = yield from self.ask_once(path, budget, body=body, probe=probe)
            except NoReply as error:
                lost = lost or error.sent
                yield from self.wait_or_give_up(path, budget, error)
                continue
            reply = replace(reply, after_loss=lost)
            if is_success(reply):
                return no_page(reply, at=f"{self.url}{path}")
            pause_s = budget.pause_s(_RETRY_S)
            if not patient or pause_s is None:
                return reply
            refusal = command_error(reply, doing=f"{self.url}{path}")
            if not is_busy(refusal):
                return reply
            tell_of_retry(refusal, budget)
            yield from sleep(pause_s)

    def wait_or_give_up(self, path: str, budget: Budget, error: NoReply) -> Steps[None]:
        """Wait for a retry.

        Raises: NoAnswer when there is no time for one; RequestRefused when none can help.
        """
        if not error.final and budget.pause_s(_RETRY_S) is not None:
            tell_of_retry(f"{self.url}{path}: {error}", budget)
        yield from self.wait_in_silence(path, budget, error)

    def wait_in_silence(self, path: str, budget: Budget, error: NoReply) -> Steps[None]:
        """The same, of what is no trouble yet."""
        if error.final:
            raise self.not_sent(path, error)
        pause_s = budget.pause_s(_RETRY_S)
        if pause_s is None:
            raise NoAnswer(
                f"{self.url}{path} was not answered within {budget.seconds:g} s ({error}); "
                "wanted a server that answers: look whether it runs, and send it again"
            ) from error
        yield from sleep(pause_s)

    def kind_of_server(self, budget: Budget) -> Steps[ServerKind]:
        """Told, or found out once by asking for hotswap's own ``/status``.

        Raises: NoAnswer, RequestRefused, ReplyMalformed.
        """
        if self.kind is None:
            reply = yield from self.ask("/status", budget)
            if reply.status in (404, 405):
                self.kind = ServerKind.SGLANG
            elif is_success(reply):
                known = "facts" in fields_of(reply, at=f"{self.url}/status").body
                self.kind = ServerKind.HOTSWAP if known else ServerKind.SGLANG
            else:
                raise command_error(reply, doing=f"{self.url}/status")
        return self.kind

    def not_sent(self, path: str, error: NoReply) -> RequestRefused:
        """The error for a request that HTTP does not allow."""
        return RequestRefused(f"{self.url}{path} was not sent: {error}", status=0)

    def unknown(self, doing: str, reason: object) -> OutcomeUnknown:
        """The error for an update of which nobody can say what it did."""
        return OutcomeUnknown(
            f"{doing}: {reason}; wanted to know whether it changed the weights: look at the "
            "state of the server, and send the update again if it did not"
        )


def answered(reply: Reply) -> Reply:
    """``reply``, unless it is what a proxy says in the server's place. Raises: NoReply."""
    if is_of_proxy(reply):
        raise NoReply(
            f"something on the way answered {reply.status} in its place: {message_of(reply)}",
            sent=True,
        )
    return reply


def tell_of_retry(trouble: object, budget: Budget) -> None:
    """Log that a request is sent again and why, now and then."""
    if budget.is_time_to_tell():
        _log.warning("%s; asking again, for up to %.0f s", trouble, budget.left_s)


def _address(url: str) -> str:
    """``url`` as paths are put behind it. Raises: ValueError."""
    wanted = "wanted one like http://127.0.0.1:30000"
    try:
        parsed = httpx.URL(url)
        # As it is looked up, which refuses labels that are too long.
        parsed.raw_host.decode("ascii").encode("idna")
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"the address is {without_passwords(url)!r} ({error}), {wanted}") from None
    # A port of None is the one that the scheme has.
    fits = parsed.host and (parsed.port is None or 0 < parsed.port < 2**16)
    if parsed.scheme not in ("http", "https") or not fits or parsed.query or parsed.fragment:
        raise ValueError(f"the address is {without_passwords(url)!r}, {wanted}")
    return url.rstrip("/")


def _sendable(key: str | None, *, name: str) -> str | None:
    """``key`` without the white space around it, as files have. Raises: ValueError."""
    if key is None:
        return None
    sent = key.strip()
    try:
        ApiKey(sent)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return sent


def _ways_to_show(*keys: str | None) -> tuple[str, ...]:
    """What a reply may echo of ``keys``, as it is and as texts quote it; the longest first."""
    found = {
        form
        for key in keys
        # Shorter ones are in every text somewhere, and guard nothing.
        if key is not None and len(key) >= _LEAST_HIDDEN
        for form in (key, json.dumps(key)[1:-1], repr(key)[1:-1])
    }
    return tuple(sorted(found, key=len, reverse=True))


def is_busy(error: HotswapError) -> bool:
    """Whether the server was busy with another command, and will not stay so."""
    return isinstance(error, Busy) and not isinstance(error, ShuttingDown)
