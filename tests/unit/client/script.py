"""A server and a clock for steps, written down beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from hotswap.client.effects import (
    CloseStream,
    Effect,
    NoReply,
    OpenStream,
    ReadStream,
    Reply,
    Send,
    Sleep,
    Steps,
)
from hotswap.client.session import Budget, ServerKind, Session

T = TypeVar("T")

NEVER_SENT = NoReply("ConnectError: refused", sent=False)
LOST = NoReply("ReadTimeout: gone", sent=True)

Answer = Reply | NoReply | bytes
Asked = tuple[str, dict[str, Any] | None]


def reply(status: int = 200, body: object = None, **headers: str) -> Reply:
    """A JSON reply; ``x_hotswap_error`` is a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, headers=named, body=json.dumps(body or {}).encode())


def status(
    *,
    epoch: int = 0,
    version: str | None = None,
    model_path: str = "a",
    weights: str = "whole",
    updates: Sequence[dict[str, Any]] = (),
) -> Reply:
    """``/status`` of a hotswap server."""
    body = {
        "version": "0",
        "state": "serving",
        "ready": True,
        "facts": {"gate": None, "weights": weights},
        "weights": {"weight_version": version, "weight_epoch": epoch},
        "in_flight": {"running": 0, "waiting": 0},
        "updates": list(updates),
        "model_path": model_path,
    }
    return reply(200, body)


class Script:
    """Answers what the steps ask for in the order of ``answers``; time passes as they sleep.

    A reply that never came takes all the time that it was given.
    """

    def __init__(self, *answers: Answer, kind: ServerKind | None = ServerKind.HOTSWAP) -> None:
        self.answers = list(answers)
        self.asked: list[Asked] = []
        self.slept: list[float] = []
        self.opened: list[OpenStream] = []
        self.closed = 0
        self.now = 100.0
        self.session = Session("http://server", kind=kind, clock=lambda: self.now)

    def budget(self, within_s: float = 600.0) -> Budget:
        """From now on."""
        return self.session.budget(within_s)

    def run(self, steps: Steps[T], *, more: bool = False) -> T:
        """To the end. Every answer has to have been asked for, unless there is ``more``."""
        answer: object = None
        failure: NoReply | None = None
        while True:
            try:
                effect = steps.send(answer) if failure is None else steps.throw(failure)
            except StopIteration as end:
                assert more or self.answers == [], f"never asked for: {self.answers}"
                result: T = end.value
                return result
            try:
                answer, failure = self._perform(effect), None
            except NoReply as error:
                failure = error

    def _perform(self, effect: Effect) -> object:
        match effect:
            case Sleep(seconds=seconds):
                self.slept.append(seconds)
                self.now += seconds
                return None
            case CloseStream():
                self.closed += 1
                return None
            case Send():
                self.asked.append((effect.path, None if effect.body is None else {**effect.body}))
            case OpenStream():
                self.opened.append(effect)
            case ReadStream():
                pass
        assert self.answers, f"nothing left to answer {effect} with"
        answer = self.answers.pop(0)
        if isinstance(answer, NoReply):
            if answer is LOST and isinstance(effect, Send):
                self.now += min(effect.timeout_s, 10.0)
            raise NoReply(str(answer), sent=answer.sent, final=answer.final)
        return answer

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [path for path, _ in self.asked]


def raised(kind: type[Exception], run: Callable[[], object]) -> Exception:
    """What ``run`` raises, which has to be exactly of ``kind``."""
    with pytest.raises(kind) as caught:
        run()
    assert type(caught.value) is kind
    return caught.value
