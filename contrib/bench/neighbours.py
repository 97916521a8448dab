"""What else the machine did meanwhile: processor time of other processes, and of its host.

A figure that is too high says nothing of hotswap while somebody else has the cores; one
that is too high beside nobody does. The kernel counts in steps of 10 ms.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Moment"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Processor seconds so far: of everything, of one process and this one, of the host.

    ``stolen_s`` is what a virtual machine was ready to run for and was not let.
    """

    busy_s: float
    own_s: float
    stolen_s: float

    @classmethod
    def now(cls, pid: int) -> Self:
        """``own_s`` is that of process ``pid``, its threads' too, and of this one."""
        machine = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, machine[:8])
        own = _process_ticks(pid) + _process_ticks(os.getpid())
        return cls(
            busy_s=(user + nice + system + irq + softirq) / _TICKS,
            own_s=own / _TICKS,
            stolen_s=steal / _TICKS,
        )

    def others_s(self, before: Self) -> float:
        """What was taken from the two processes since ``before``, by others or by the host."""
        busy = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return max(busy, 0.0) + self.stolen_s - before.stolen_s


def _process_ticks(pid: int) -> int:
    # The second field is a name in brackets, which may have anything in it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
