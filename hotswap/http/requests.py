"""Submit now, ask later: requests that outlive the connection that brought them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import Response

from hotswap.http.batches import Batch
from hotswap.http.disconnect import until_disconnect
from hotswap.http.errors import NotFound
from hotswap.http.generation import generator_of, transcriptions
from hotswap.http.json_body import arguments, converted, ignored_names, named_values
from hotswap.http.replies import Json
from hotswap.http.routes import Kind, KindedRoute, Level
from hotswap.http.schemas import INNER_BODIES, NoBody
from hotswap.http.served import Served, served
from hotswap.http.submissions import Result, Submission
from hotswap.http.submit_bodies import (
    AbortBody,
    CancelBody,
    ResultBody,
    SubmitBody,
    SubmitManyBody,
)

__all__ = [
    "abort_request",
    "all_requests",
    "cancel",
    "one_request",
    "poll",
    "result",
    "routes",
    "submit",
    "submit_many",
]


_JSON = ("application/json",)


def routes() -> list[KindedRoute]:
    """Every route of this module.

    ``/abort_request`` is open to whoever may generate, since clients of a rollout send it;
    where there are keys it asks for the one that SGLang's asks for.
    """
    generate = partial(KindedRoute, kind=Kind.GENERATE)
    return [
        generate("/submit", submit, methods=["POST"], body=SubmitBody, answers={202: _JSON}),
        generate(
            "/submit_many", submit_many, methods=["POST"], body=SubmitManyBody, answers={202: _JSON}
        ),
        generate("/poll/{request_id:path}", poll, methods=["GET"], body=NoBody),
        generate(
            "/result/{request_id:path}",
            result,
            methods=["GET"],
            body=ResultBody,
            answers={200: _JSON, 202: _JSON},
        ),
        generate("/cancel", cancel, methods=["POST"], body=CancelBody),
        generate("/requests", all_requests, methods=["GET"], body=NoBody),
        generate("/requests/{request_id:path}", one_request, methods=["GET"], body=NoBody),
        generate(
            "/abort_request",
            abort_request,
            methods=["POST"],
            body=AbortBody,
            level=Level.ADMIN_OPTIONAL,
        ),
    ]


async def submit(request: Request) -> Response:
    """Take one request; 202 once the engine has it."""
    serving = served(request)
    values = await named_values(request, limit_bytes=_limit(serving))
    batch = converted(values, SubmitBody).batch(temperature=serving.dialect.temperature)
    ignored = ignored_names(values, SubmitBody, inner=INNER_BODIES)
    (rid,) = await _accepted(request, serving, batch, ignored=ignored)
    return Json({"request_id": rid}, status_code=202)


async def submit_many(request: Request) -> Response:
    """Take all of several requests, or none of them."""
    serving = served(request)
    body = await arguments(request, SubmitManyBody, limit_bytes=_limit(serving))
    batch = body.batch(temperature=serving.dialect.temperature)
    rids = await _accepted(request, serving, batch, ignored=body.ignored())
    return Json({"request_ids": rids}, status_code=202)


async def poll(request: Request) -> Response:
    """Everything so far, at once."""
    serving = served(request)
    await _no_body(request)
    found = _found(request)
    if isinstance(found, Result):
        return _reply(serving, found, status=200)
    return Json(found.body())


async def result(request: Request) -> Response:
    """The final reply, 202 while there is none."""
    serving = served(request)
    body = await arguments(request, ResultBody, limit_bytes=_limit(serving))
    found = _found(request)
    if isinstance(found, Submission) and body.timeout > 0:
        over = found.over

        async def wait() -> None:
            with anyio.move_on_after(body.timeout):
                await over.wait()

        await until_disconnect(request.receive, wait)
        found = _found(request)
    if isinstance(found, Result):
        return _reply(serving, found, status=found.status)
    return Json({"request_id": found.ticket.rid, "state": found.state}, status_code=202)


async def cancel(request: Request) -> Response:
    """Ask for the end of a request or batch, of ``/generate`` too; each has its final reply."""
    serving = served(request)
    body = await arguments(request, CancelBody, limit_bytes=_limit(serving))
    rid = body.wanted()
    live = [ticket for ticket in serving.requests if rid in (ticket.rid, ticket.batch)]
    row = {"request_id": rid} if live else _row(serving, rid)
    for ticket in live:
        ticket.abort()
    return Json({**row, "cancelled": any(ticket.aborted for ticket in live)})


async def abort_request(request: Request) -> Response:
    """Ask for the end of one request, of those with a prefix, or of all. An empty 200."""
    serving = served(request)
    body = await arguments(request, AbortBody, limit_bytes=_limit(serving))
    if body.abort_all:
        serving.requests.abort("", prefix=True, message=body.abort_message)
    elif body.rid:
        prefix = serving.dialect.aborts_by_prefix if body.prefix is None else body.prefix
        serving.requests.abort(body.rid, prefix=prefix, message=body.abort_message)
    return Response(status_code=200)


async def all_requests(request: Request) -> Response:
    """Ids and states: results that are kept, and everything in flight."""
    await _no_body(request)
    serving = served(request)
    rows = [_submitted_row(rid, state) for rid, state in serving.submissions]
    known = {row["request_id"] for row in rows}
    rows += [_row(serving, one.rid) for one in serving.requests if one.rid not in known]
    return Json({"requests": rows, "count": len(rows)})


async def one_request(request: Request) -> Response:
    """Id and state of one request."""
    await _no_body(request)
    return Json(_row(served(request), request.path_params["request_id"]))


async def _accepted(
    request: Request, serving: Served, batch: Batch, *, ignored: Sequence[str]
) -> list[str]:
    """Have every request of ``batch`` run in the background. Raises: as ``submit_all``."""
    generator_of(serving)
    with ExitStack() as stack:
        expected = []
        for rid, _ in batch.rids:
            serving.submissions.check_unused(rid)
            ticket = stack.enter_context(serving.requests.reserve(rid))
            submission = serving.submissions.expect(ticket)
            stack.callback(serving.submissions.drop, submission)
            expected.append(submission)
        tickets = [submission.ticket for submission in expected]

        async def accept() -> None:
            begun = await transcriptions(serving, batch, tickets, ignored=ignored)
            # No await any more: who has been told of a disconnect has started nothing.
            for submission, one in zip(expected, begun, strict=True):
                serving.submissions.begin(submission, one, failed=failed)
            stack.pop_all()

        def failed(error: Exception) -> tuple[int, Mapping[str, object]]:
            wire = serving.dialect.wire(error)
            return wire.status, serving.dialect.error_body(error, wire=wire, reports_success=False)

        await until_disconnect(request.receive, accept)
    return [ticket.rid for ticket in tickets]


def _found(request: Request) -> Submission | Result:
    """Raises: NotFound."""
    rid = request.path_params["request_id"]
    found = served(request).submissions.find(rid)
    if found is None:
        raise NotFound(
            f"no submitted request {rid!r}: it was never submitted here, or its result is not "
            "kept any more"
        )
    return found


def _row(serving: Served, rid: str) -> dict[str, object]:
    """Raises: NotFound."""
    found = serving.submissions.find(rid)
    if found is not None:
        return _submitted_row(rid, found.state)
    for ticket in serving.requests:
        if ticket.rid == rid:
            return {"request_id": rid, "state": ticket.state, "route": "generate"}
    raise NotFound(f"no request {rid!r} is in flight, and no result of one is kept")


def _submitted_row(rid: str, state: str) -> dict[str, object]:
    return {"request_id": rid, "state": state, "route": "submit"}


def _reply(serving: Served, found: Result, *, status: int) -> Response:
    serving.submissions.note_read(found)
    return Response(found.body, status_code=status, media_type="application/json")


async def _no_body(request: Request) -> None:
    await arguments(request, NoBody, limit_bytes=_limit(served(request)))


def _limit(serving: Served) -> int:
    return serving.settings.max_http_request_bytes
