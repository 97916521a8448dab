"""Where a pull has got to, for those who watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotswap.foreign import reason_of, words_of
from hotswap.stream import Progress, PullReport

__all__ = ["PullNews", "outcome_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullNews:
    """One step of the pull ``number`` of a server.

    ``progress`` None at its begin and at its end; ``outcome`` None until then:
    ``done``, ``cancelled`` or the class of the error in words (``source_not_ready``).
    """

    number: int
    local: str
    source: str
    target: int
    progress: Progress | None = None
    outcome: str | None = None
    report: PullReport | None = None
    error: BaseException | None = None
    elapsed_s: float = 0.0

    @property
    def phase(self) -> str:
        """``received``, what the pull is doing, or how it ended."""
        if self.outcome is not None:
            return self.outcome
        return "received" if self.progress is None else self.progress.phase

    def fields(self) -> dict[str, object]:
        """The news as JSON types."""
        told: dict[str, object] = {
            "pull": self.number,
            "phase": self.phase,
            "local": words_of(self.local),
            "source": words_of(self.source),
            "target": self.target,
        }
        return told | dict(self._more())

    def _more(self) -> Mapping[str, object]:
        if self.progress is not None:
            return {
                "done_bytes": self.progress.done_bytes,
                "total_bytes": self.progress.total_bytes,
            }
        if self.report is not None:
            return {
                "mode": self.report.mode,
                "versions": len(self.report.versions),
                "read_bytes": self.report.read_bytes,
                "written_bytes": self.report.written_bytes,
                "elapsed_ms": self.elapsed_s * 1000.0,
            }
        if self.error is not None:
            return {
                "reason": reason_of(self.error),
                "local_version": getattr(self.error, "local_version", None),
            }
        return {}


def outcome_of(error: BaseException) -> str:
    """The class of ``error`` in words: ``DiskFull`` is ``disk_full``."""
    name = type(error).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")
