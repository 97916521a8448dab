"""What all of a process shares, and no plug-in may change: nobody else in it has asked for that."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["ProcessState", "other_threads_of_torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """Everything of that kind, at one moment. Main thread, where signals are seen."""

    directory: str
    environment: Mapping[str, str]
    dtype: torch.dtype
    torch_threads: int
    timeout_s: float | None
    signals: Mapping[int, Any]

    @classmethod
    def now(cls) -> ProcessState:
        """As it is."""
        return cls(
            directory=os.getcwd(),
            environment=dict(os.environ),
            dtype=torch.get_default_dtype(),
            torch_threads=torch.get_num_threads(),
            timeout_s=socket.getdefaulttimeout(),
            signals={number: signal.getsignal(number) for number in signal.valid_signals()},
        )

    def changes_to(self, now: ProcessState) -> list[str]:
        """What is different now, in words."""
        names = sorted(self.environment.keys() | now.environment.keys())
        changed = [
            f"the environment variable {name}"
            for name in names
            if self.environment.get(name) != now.environment.get(name)
        ]
        changed += [
            f"the handler of {signal.Signals(number).name}"
            for number, handler in self.signals.items()
            if now.signals[number] is not handler and now.signals[number] != handler
        ]
        pairs = {
            "the working directory": (self.directory, now.directory),
            "torch's default dtype": (self.dtype, now.dtype),
            "torch's number of threads": (self.torch_threads, now.torch_threads),
            "the default time-out of sockets": (self.timeout_s, now.timeout_s),
        }
        return changed + [
            f"{what} ({before}, and then {after})"
            for what, (before, after) in pairs.items()
            if before != after
        ]

    def restore(self) -> None:
        """Make it so again."""
        os.chdir(self.directory)
        for name in set(os.environ) - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment)
        torch.set_default_dtype(self.dtype)
        torch.set_num_threads(self.torch_threads)
        socket.setdefaulttimeout(self.timeout_s)
        for number, handler in self.signals.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with suppress(OSError, TypeError, ValueError):
                    signal.signal(number, handler)  # one that Python knows


@contextmanager
def other_threads_of_torch() -> Iterator[None]:
    """Another number of torch's threads than there is, so that setting the usual one shows."""
    before = torch.get_num_threads()
    torch.set_num_threads(3 if before == 2 else 2)
    try:
        yield
    finally:
        torch.set_num_threads(before)
