"""From tokens to running generations: what every route that generates does the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio

from hotswap.foreign import contained, on_a_thread, words_of
from hotswap.http.aborted import AbortedGeneration
from hotswap.http.errors import EngineDown, RequestInvalid, ShuttingDown
from hotswap.http.in_flight import Ticket
from hotswap.http.served import Served
from hotswap.http.transcription import EngineFailed
from hotswap.seams import GenerateRequest, Generation, Generator

__all__ = ["EngineFailed", "encoded", "run_together", "submit_all"]

# Longer texts are encoded on a worker thread, so that the event loop stays free.
_INLINE_CHARACTERS = 4096


async def submit_all(
    serving: Served, engine: Generator, runs: Sequence[tuple[Ticket, GenerateRequest]]
) -> list[Generation]:
    """Wait at the door once, then submit everything, as one request that came in.

    When one of them is refused, those before it run: leaving their tickets aborts them.
    One that was aborted at the door is not submitted, and its generation says ``abort``.
    Raises: Paused, WeightsNotWhole, QueueFull, RequestInvalid, ShuttingDown, EngineDown.
    """
    await _through_the_door(serving, [ticket for ticket, _ in runs])
    # No await from here to submit: the door may close at any await.
    if serving.requests.closed:
        raise ShuttingDown("the server is shutting down; send the request to another one")
    if not serving.engine_alive:
        raise EngineDown("the engine has ended; restart the server (its log says why)")
    generations: list[Generation] = []
    for number, (ticket, request) in enumerate(runs):
        if ticket.aborted:
            generations.append(AbortedGeneration(serving.commands.stamp))
            continue
        try:
            ticket.generation = serving.observation.requests.watch(
                engine.submit(request), prompt_tokens=len(request.input_ids)
            )
        except ValueError as error:
            where = f"prompt {number}: " if len(runs) > 1 else ""
            raise RequestInvalid(f"{where}{words_of(error)}") from error
        generations.append(ticket.generation)
    return generations


async def _through_the_door(serving: Served, tickets: Sequence[Ticket]) -> None:
    """Return when requests may enter, or when every one of these has been aborted."""
    with anyio.CancelScope() as scope:

        def stop_waiting() -> None:
            if all(ticket.aborted for ticket in tickets):
                scope.cancel()

        for ticket in tickets:
            ticket.on_abort = stop_waiting
        if not all(ticket.aborted for ticket in tickets):
            await serving.commands.admission.enter()


async def encoded(
    encode: Callable[[str], list[int]], text: str, *, encoders: anyio.CapacityLimiter
) -> list[int]:
    """Token ids of ``text``, one at least. Raises: RequestInvalid."""
    try:
        if len(text) <= _INLINE_CHARACTERS:
            ids = encode(text)
        else:
            ids = await anyio.to_thread.run_sync(on_a_thread, encode, text, limiter=encoders)
    except ValueError as error:
        raise RequestInvalid(f"text cannot be encoded: {words_of(error)}") from error
    if not ids:
        raise RequestInvalid("text has no tokens in it, wanted at least one")
    return ids


async def run_together(works: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run every one of ``works``; the first that fails cancels the others and is raised."""
    raised: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def run(work: Callable[[], Awaitable[None]]) -> None:
            try:
                with contained():
                    await work()
            except Exception as error:
                # Carried out by hand: the task group would wrap it in a group.
                raised.append(error)
                tasks.cancel_scope.cancel()

        for work in works:
            tasks.start_soon(run, work)
    if raised:
        raise raised[0]
