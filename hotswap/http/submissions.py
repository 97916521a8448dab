"""Requests that were submitted to be asked about later, and their results.

Rule: each has one final result, and it never changes. Results are kept by count, bytes
and age, the newest one always; a request that runs is bounded by the engine's queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import anyio

from hotswap.foreign import contained
from hotswap.http.errors import DuplicateRequestId
from hotswap.http.failures import log_failure
from hotswap.http.in_flight import Ticket
from hotswap.http.replies import encode
from hotswap.http.transcription import Transcription

__all__ = ["Result", "Submission", "Submissions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a request ended: ``state``, and the reply as JSON with its HTTP status."""

    rid: str
    state: str
    status: int
    body: bytes
    at_s: float


class Submission:
    """A request that has no result yet. ``over`` is set once it has, or was dropped."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.begun: Transcription | None = None
        self.over: anyio.Event = anyio.Event()

    def __repr__(self) -> str:
        return f"<Submission {self.ticket.rid} {self.state}>"

    @property
    def state(self) -> str:
        """``waiting`` at the door, then ``running`` (the engine's queue included)."""
        return "waiting" if self.begun is None else "running"

    def body(self) -> dict[str, object]:
        """The reply so far."""
        rid = self.ticket.rid
        so_far = {} if self.begun is None else self.begun.transcript.reply()
        return _body(rid, self.state, so_far)


class Submissions:
    """Every submitted request of one app, from its arrival until its result is let go."""

    def __init__(
        self,
        *,
        max_results: int = 1024,
        max_bytes: int = 64 * 1024 * 1024,
        max_age_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._live: dict[str, Submission] = {}
        self._results: dict[str, Result] = {}
        self._result_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread: set[str] = set()
        self._news = anyio.Event()

    def __len__(self) -> int:
        return len(self._live) + len(self._results)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Id and state of each, the oldest result first, then what has none yet."""
        self._let_go()
        yield from [(one.rid, one.state) for one in self._results.values()]
        yield from [(rid, one.state) for rid, one in self._live.items()]

    def __repr__(self) -> str:
        return f"<Submissions {len(self._live)} live, {len(self._results)} results>"

    def find(self, rid: str) -> Submission | Result | None:
        """A request by its id; None when it is not known, or not any more."""
        self._let_go()
        return self._live.get(rid) or self._results.get(rid)

    def note_read(self, result: Result) -> None:
        """Its client has it now."""
        self._unread.discard(result.rid)
        self._tell()

    async def all_read(self) -> None:
        """Return once nothing runs any more, and no result is kept that nobody has read."""
        while self._live or self._unread:
            await self._news.wait()

    def check_unused(self, rid: str | None) -> None:
        """Raises: DuplicateRequestId when a result of that id is kept."""
        self._let_go()
        if rid in self._results:
            raise DuplicateRequestId(
                f"duplicate request id {rid!r}: the result of a request with it is kept; "
                "read it at /result, or send another id"
            )

    def expect(self, ticket: Ticket) -> Submission:
        """Show a request that is not with the engine yet. ``drop`` it, or ``begin`` it."""
        submission = self._live[ticket.rid] = Submission(ticket)
        return submission

    def drop(self, submission: Submission) -> None:
        """Forget a request that was refused: it never was accepted."""
        self._live.pop(submission.ticket.rid, None)
        self._tell()
        submission.over.set()

    def begin(
        self,
        submission: Submission,
        begun: Transcription,
        *,
        failed: Callable[[Exception], tuple[int, Mapping[str, object]]],
    ) -> None:
        """Read a request to its end in the background, and leave its ticket there.

        ``failed`` gives status and body of an error.
        """
        submission.begun = begun
        task = asyncio.get_running_loop().create_task(self._read(submission, begun, failed))
        # The loop keeps weak references to tasks only.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(
        self,
        submission: Submission,
        begun: Transcription,
        failed: Callable[[Exception], tuple[int, Mapping[str, object]]],
    ) -> None:
        rid = submission.ticket.rid
        try:
            with contained(), submission.ticket:
                await begun.read(showing=True)
            state = "aborted" if begun.transcript.finish == "abort" else "finished"
            status, body = 200, _body(rid, state, begun.transcript.reply())
        except Exception as error:
            log_failure(f"request {rid}", error, rid=rid)
            state = "failed"
            status, envelope = failed(error)
            body = {"request_id": rid, "state": state, **envelope}
        self._keep(submission, state=state, status=status, body=encode(body))

    def _keep(self, submission: Submission, *, state: str, status: int, body: bytes) -> None:
        rid = submission.ticket.rid
        del self._live[rid]
        self._results[rid] = Result(
            rid=rid, state=state, status=status, body=body, at_s=self._clock()
        )
        self._result_bytes += len(body)
        self._unread.add(rid)
        self._let_go()
        self._tell()
        submission.over.set()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _let_go(self) -> None:
        """Forget the oldest results while there are too many, or they are too old."""
        too_old = self._clock() - self._max_age_s
        while self._results:
            oldest = next(iter(self._results.values()))
            is_too_much = len(self._results) > 1 and (
                len(self._results) > self._max_results or self._result_bytes > self._max_bytes
            )
            if not is_too_much and oldest.at_s > too_old:
                return
            del self._results[oldest.rid]
            self._unread.discard(oldest.rid)
            self._result_bytes -= len(oldest.body)


def _body(rid: str, state: str, reply: Mapping[str, object]) -> dict[str, object]:
    """A reply of ``/generate`` with what clients of GR look for besides."""
    meta = reply.get("meta_info", {})
    own = {"request_id": rid, "beam_width": 1}
    return {
        "request_id": rid,
        "state": state,
        "text": reply.get("text", ""),
        "output_ids": reply.get("output_ids", []),
        "meta_info": {**meta, **own} if isinstance(meta, dict) else own,
    }
