"""A server whose event loop is ended by ``sys.exit()`` in a callback or task of a plug-in."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, logging, sys
from hotswap.loop_end import run_loop

logging.basicConfig(format="%(levelname)s %(message)s")

def task(*said):
    async def ends():
        sys.exit(*said)
    kept.append(asyncio.get_running_loop().create_task(ends()))

def callback(*said):
    asyncio.get_running_loop().call_soon(sys.exit, *said)

async def serve(way, said):
    way(*said)
    while stubborn:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
    await asyncio.sleep(3600)

kept = []
"""


def ended(way: str, said: str, *, stubborn: bool = False) -> tuple[int, list[str]]:
    """Exit code and log of a process whose loop ``sys.exit(said)`` ends."""
    script = f"{SCRIPT}stubborn = {stubborn}\nrun_loop(serve({way}, ({said})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("way", "said", "code"),
    [("callback", "7,", 7), ("task", "7,", 7), ("callback", "", 0), ("task", "'gone',", 1)],
)
def test_the_process_ends_with_that_code_and_one_line(way: str, said: str, code: int) -> None:
    found, log = ended(way, said)
    assert found == code
    [line] = [one for one in log if one.startswith("CRITICAL")]
    assert line.startswith(
        "CRITICAL a callback or task on the event loop ended the server with SystemExit"
    )


@pytest.mark.parametrize(("said", "code"), [("7,", 7), ("", 0), ("'gone',", 1)])
def test_what_does_not_end_when_cancelled_is_not_waited_for(said: str, code: int) -> None:
    found, log = ended("callback", said, stubborn=True)
    assert found == code
    assert log[-1] == "WARNING a thread has not ended after 3 s: the process ends without it"
