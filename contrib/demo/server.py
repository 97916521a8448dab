"""``hotswap serve`` as a process of its own, on a free loopback port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from contrib.demo.client import Client
from contrib.demo.failed import DemoFailed

__all__ = ["serving"]

START_S = 120.0
STOP_S = 20.0

_URL = re.compile(r"on (http://\S+?), ")


@asynccontextmanager
async def serving(model: Path, *, dtype: str, device: str, log: Path) -> AsyncIterator[Client]:
    """Start a server on ``model``, yield its client once it is ready, and end it.

    Raises: DemoFailed naming ``log`` when it does not come up, or ends by itself.
    """
    command = [*_hotswap(), "serve", "--model", str(model), "--port", "0"]
    command += ["--dtype", dtype, "--device", device]
    command += ["--allow-weight-update", "--while-paused", "hold"]
    process = _start(command, log)
    try:
        async with Client(await _url(process, log)) as client:
            await client.wait_until_ready()
            yield client
        await _complain_if_ended(process, log, within_s=0)
    except Exception as error:
        # A connection that broke is seen a moment before the end of its process.
        await _complain_if_ended(process, log, within_s=1, cause=error)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_end, process)


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_clean_environ(),
        )


def _hotswap() -> list[str]:
    """The command that `make setup` installs beside this interpreter."""
    command = Path(sys.executable).parent / "hotswap"
    if not command.is_file():
        raise DemoFailed(f"{command} is missing; run: make setup")
    return [str(command)]


def _clean_environ() -> dict[str, str]:
    """What a person has set for a server of their own stays out of the demo's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOTSWAP_", "GR_"))}
    return kept | {"PYTHONUNBUFFERED": "1"}


async def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the line that says where the server listens."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        output = _output(log)
        if found := _URL.search(output):
            return found[1]
        await _complain_if_ended(process, log, within_s=0.1)
    raise DemoFailed(f"hotswap serve was not up within {START_S:g} s; its log is {log}")


async def _complain_if_ended(
    process: subprocess.Popen[bytes],
    log: Path,
    *,
    within_s: float,
    cause: Exception | None = None,
) -> None:
    """Raises: DemoFailed with the last line of ``log`` if ``process`` ends by then."""
    try:
        code = await anyio.to_thread.run_sync(process.wait, within_s)
    except subprocess.TimeoutExpired:
        return
    last = (_output(log).strip().splitlines() or ["it printed nothing"])[-1]
    raise DemoFailed(f"hotswap serve ended with {code}: {last} (log: {log})") from cause


def _output(log: Path) -> str:
    return log.read_text(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
