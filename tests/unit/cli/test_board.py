"""What ``watch`` makes of looks and events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from hotswap.cli.board import Board
from hotswap.cli.state import state_lines, state_object
from hotswap.cli.watch import screen
from hotswap.client import ServerEvent, ServerKind, ServerState, UpdateInProgress

SEEN = ServerState(
    server=ServerKind.HOTSWAP,
    ready=True,
    state="serving",
    weights="whole",
    weight_version="7",
    weight_epoch=3,
    weight_update_count=3,
    model_path="/a",
    running=2,
    waiting=1,
    updates=(
        UpdateInProgress(
            source="/b",
            version="8",
            phase="staging",
            since_ms=1500.0,
            bytes_done=5 * 10**8,
            bytes_total=10**9,
        ),
    ),
    server_version="1.2",
)
COMMITTED = ServerEvent(
    id="x-1",
    name="update",
    tells={
        "update": 1,
        "phase": "committed",
        "source": "/b",
        "weight_version": "8",
        "staged_ms": 12.34,
        "paused_ms": 5.0,
    },
)
REJECTED = ServerEvent(
    id="x-2", name="update", tells={"update": 2, "phase": "rejected", "reason": "no such thing"}
)


def shown(board: Board) -> str:
    console = Console(width=100, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(screen(board))
    return captured.get()


def test_a_board_that_has_seen_nothing() -> None:
    board = Board()
    assert board.line() == "no answer: not asked yet"
    assert "not asked yet" in shown(board)
    assert repr(board) == "<Board not asked yet 0 updates>"


def test_state_version_epoch_requests_and_updates() -> None:
    board = Board()
    board.see(SEEN)
    assert (
        board.line()
        == "serving  version 7  epoch 3  2 running, 1 waiting  staging 500.0 of 1000.0 MB /b"
    )
    first, second = board.hear(COMMITTED), board.hear(REJECTED)
    assert str(first) == "update 1 committed: 8 from /b: staged 12.3 ms, paused 5.0 ms"
    assert str(second) == "update 2 rejected: (no name) from : no such thing"
    text = shown(board)
    for part in ("serving", "7", "12.3 ms", "5.0 ms", "rejected", "no such thing", "staging"):
        assert part in text
    board.miss("gone")
    assert board.line() == "no answer: gone"
    assert "gone" in shown(board)
    assert "12.3 ms" in shown(board)


@pytest.mark.parametrize("name", ["state", "update"])
def test_events_that_end_no_update_are_none(name: str) -> None:
    event = ServerEvent(id="x-1", name=name, tells={"phase": "staging"})
    assert Board().hear(event) is None


def test_only_the_newest_updates_are_kept() -> None:
    board = Board(keep=2)
    for _ in range(3):
        board.hear(COMMITTED)
    assert len(board.updates) == 2


def test_what_a_server_does_not_tell_is_left_out() -> None:
    names = [name for name, _ in state_lines(SEEN)]
    assert names[:3] == ["server", "state", "ready"]
    assert ("update", "staging 500.0 of 1000.0 MB for 1.5 s: /b") in state_lines(SEEN)
    told = ServerState(server=ServerKind.SGLANG, ready=False, reasons=("unhealthy",))
    assert state_lines(told) == [
        ("server", "sglang"),
        ("ready", "no: unhealthy"),
        ("version", "(no name)"),
    ]
    board = Board()
    board.see(told)
    assert board.line() == "not ready  version (no name)"
    assert "shown" not in state_object(replace(SEEN, shown={"secret": 1}))
