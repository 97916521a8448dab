"""What a load strategy has no business with: another part of its suite."""

from __future__ import annotations

import torch

from hotswap.seams import LoadStrategy, Stage
from hotswap.testing.fidelity_tests import FidelityTests
from hotswap.testing.findings import check, listed
from hotswap.testing.given import Publish
from hotswap.testing.holdings import Holdings
from hotswap.testing.process_state import ProcessState, other_threads_of_torch
from hotswap.types import Payload
from hotswap.uninterrupted import on_worker_thread

__all__ = ["BystanderTests"]


class BystanderTests(FidelityTests, suite=True):
    """Fixtures and settings are those of ``StrategyTests``."""

    def test_memory_that_was_filled_is_left_alone(
        self, strategy: LoadStrategy, publish: Publish
    ) -> None:
        """Once ``read_into`` has returned, ``out`` is the caller's: it may be live weights."""
        source = self._source(publish, self.weights(1))

        async def overwritten() -> list[str]:
            before = Holdings.now()
            async with self._stage(strategy, source) as stage:
                filled = await on_worker_thread(_filled_and_changed, stage)
            await before.released(within_s=self.settle_s)
            return [name for name, (out, kept) in filled.items() if not torch.equal(out, kept)]

        late = self.run(overwritten)
        check(
            not late,
            f"after read_into had returned, this was written to once more: {listed(late)}",
            todo="write to out in read_into alone, and wait there for threads that do",
        )

    def test_the_process_stays_as_it_was(self, strategy: LoadStrategy, publish: Publish) -> None:
        """Directory, environment, dtype and threads of torch, time-outs, signals: while a stage is
        open, and after it."""
        self._read(strategy, self._source(publish, self.weights(1)))
        source = self._source(publish, self.weights(2))

        async def changes() -> list[list[str]]:
            # In here: an event loop has a handler of its own for Ctrl-C.
            before, seen = ProcessState.now(), []
            async with self._stage(strategy, source) as stage:
                seen.append(before.changes_to(ProcessState.now()))
                await on_worker_thread(_filled_and_changed, stage)
                seen.append(before.changes_to(ProcessState.now()))
            return [*seen, before.changes_to(ProcessState.now())]

        with other_threads_of_torch():
            before = ProcessState.now()
            try:
                while_open, while_read, after = self.run(changes)
            finally:
                before.restore()
        for changed, when in (
            (while_open, "while the stage was open"),
            (while_read, "while its buckets were read"),
            (after, "after the stage was left"),
        ):
            check(
                not changed,
                f"{when}, this of the whole process was changed: {listed(changed)}",
                todo="pass what you need as arguments: the server and other plug-ins share it",
            )


def _filled_and_changed(stage: Stage) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The bytes of each tensor that was read into memory, every one of them then made another;
    and what they were made. Blocks."""
    found = {}
    for bucket in stage.buckets():
        for name, payload in bucket:
            out = _read(payload)
            if out is not None:
                out.bitwise_not_()
                found[name] = out, out.clone()
    return found


def _read(payload: Payload) -> torch.Tensor | None:
    """The bytes; None for a tensor in memory, which nobody has to fill."""
    if isinstance(payload, torch.Tensor) or not payload.spec.size_bytes:
        return None
    memory = torch.empty(payload.spec.size_bytes, dtype=torch.uint8)
    payload.read_into(memory.view(payload.spec.dtype).view(payload.spec.shape))
    return memory
