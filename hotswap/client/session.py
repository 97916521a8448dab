"""What one client knows of its server, and how it asks: keys, time, retries.

Rules of retrying:

* A request that the server cannot have seen may be sent again, whatever it is.
* One that it may have seen may be sent again when twice is the same as once.
* ``busy`` says that nothing was begun: it may be sent again.
* No retry begins after the time that the caller gave.
* Nobody waits without a word: the first retry of a call is logged, and then some.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from hotswap.api_keys import ApiKey
from hotswap.client.effects import NoReply, Reply, Send, Steps, send, sleep
from hotswap.client.errors import NoAnswer, OutcomeUnknown, RequestRefused
from hotswap.client.replies import body_of, command_error
from hotswap.errors import Busy, HotswapError, ShuttingDown

__all__ = ["Budget", "ServerKind", "Session", "is_busy", "tell_of_retry"]

_log = logging.getLogger("hotswap.client")

_RETRY_S = 0.5
_LEAST_TIMEOUT_S = 0.001

# A call that is over sooner tells of its trouble by its error.
_SHORT_CALL_S = 2.0
_TELL_EVERY_S = 30.0


class ServerKind(StrEnum):
    """Whose server it is: hotswap's, in whichever dialect, or SGLang's own."""

    HOTSWAP = "hotswap"
    SGLANG = "sglang"


class Budget:
    """So many seconds from now on, for everything that one call does."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        if not seconds > 0:
            raise ValueError(f"within_s is {seconds:g}, wanted more than 0 seconds")
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

    def is_time_to_tell(self) -> bool:
        """Whether a retry now is worth a line in the log: the first, then one in 30 s."""
        now = self._clock()
        if now < self._silent_until:
            return False
        self._silent_until = now + _TELL_EVERY_S
        return True


class Session:
    """Address, keys and findings of one client. No I/O.

    ``fences`` are the modes of the ``paused()`` contexts that are open now.
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
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the address is {url!r}, wanted one like http://127.0.0.1:30000")
        self.url: str = url.rstrip("/")
        self.kind = kind
        self.clock = clock
        self.fences: list[str | None] = []
        self._api_key = _sendable(api_key, name="api_key")
        self._admin_key = _sendable(admin_key, name="admin_key")

    def __repr__(self) -> str:
        return f"<Session {self.url} {self.kind or 'not asked yet'}>"

    def budget(self, within_s: float) -> Budget:
        """Raises: ValueError for no time at all."""
        return Budget(within_s, self.clock)

    def key_headers(self, *, admin: bool) -> dict[str, str]:
        """The one key that the route asks for, if we have one."""
        key = (self._admin_key or self._api_key) if admin else self._api_key
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def wants_fence(self, told: bool | None) -> bool:
        """Whether an update pauses and continues by itself, around several requests.

        Never inside a fence. Unless told, only for SGLang: hotswap does it in one request,
        and reads the checkpoint before the pause. The kind has to be known.
        """
        if self.fences:
            return False
        return self.kind is ServerKind.SGLANG if told is None else told

    def ask_once(
        self, path: str, budget: Budget, *, body: Mapping[str, object] | None = None
    ) -> Steps[Reply]:
        """GET, or POST of ``body``, without a retry. Raises: NoReply."""
        return (
            yield from send(
                Send(
                    method="GET" if body is None else "POST",
                    path=path,
                    body=body,
                    timeout_s=max(budget.left_s, _LEAST_TIMEOUT_S),
                    headers=self.key_headers(admin=body is not None),
                )
            )
        )

    def ask(
        self,
        path: str,
        budget: Budget,
        *,
        body: Mapping[str, object] | None = None,
        patient: bool = True,
    ) -> Steps[Reply]:
        """The same, of something that may be sent twice: retried while there is time.

        ``patient`` also waits for a server that is busy with another command.
        Returns the reply, which may be an error. Raises: NoAnswer.
        """
        while True:
            try:
                reply = yield from self.ask_once(path, budget, body=body)
            except NoReply as error:
                yield from self.wait_or_give_up(path, budget, error)
                continue
            if not patient or reply.status < 400 or budget.left_s <= _RETRY_S:
                return reply
            refusal = command_error(reply, doing=f"{self.url}{path}")
            if not is_busy(refusal):
                return reply
            tell_of_retry(refusal, budget)
            yield from sleep(_RETRY_S)

    def wait_or_give_up(self, path: str, budget: Budget, error: NoReply) -> Steps[None]:
        """Wait for a retry.

        Raises: NoAnswer when there is no time for one; RequestRefused when none can help.
        """
        if error.final:
            raise self.not_sent(path, error)
        if budget.left_s <= _RETRY_S:
            raise NoAnswer(
                f"{self.url}{path} was not answered within {budget.seconds:g} s ({error}); "
                "wanted a server that answers: look whether it runs, and send it again"
            ) from error
        tell_of_retry(f"{self.url}{path}: {error}", budget)
        yield from sleep(_RETRY_S)

    def kind_of_server(self, budget: Budget) -> Steps[ServerKind]:
        """Told, or found out once by asking for hotswap's own ``/status``.

        Raises: NoAnswer, RequestRefused.
        """
        if self.kind is None:
            reply = yield from self.ask("/status", budget)
            if reply.status in (404, 405):
                self.kind = ServerKind.SGLANG
            elif reply.status == 200:
                known = "facts" in body_of(reply)
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


def tell_of_retry(trouble: object, budget: Budget) -> None:
    """Log that a request is sent again and why, now and then."""
    if budget.is_time_to_tell():
        _log.warning("%s; asking again, for up to %.0f s", trouble, budget.left_s)


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


def is_busy(error: HotswapError) -> bool:
    """Whether the server was busy with another command, and will not stay so."""
    return isinstance(error, Busy) and not isinstance(error, ShuttingDown)
