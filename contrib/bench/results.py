"""What a benchmark reports: measures with or without a limit, and how they print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

__all__ = ["Measure", "Report", "best", "quantile", "ratio_of_bests", "spread", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure. ``limit`` None means that it is shown and decides nothing."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value is within the limit, if there is one."""
        return self.limit is None or self.value <= self.limit

    @property
    def verdict(self) -> str:
        """``PASS``, ``FAIL``, or nothing for a figure without a limit."""
        if self.limit is None:
            return ""
        return "PASS" if self.passed else "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark's figures, and the configuration that they hold for."""

    name: str
    configuration: Mapping[str, object]
    measures: Sequence[Measure]
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no limit was exceeded."""
        return all(measure.passed for measure in self.measures)

    def as_json(self) -> dict[str, object]:
        """Everything, with the verdicts spelt out."""
        measures = [{**asdict(one), "verdict": one.verdict} for one in self.measures]
        return {**asdict(self), "measures": measures, "passed": self.passed}


def quantile(values: Iterable[float], share: float) -> float:
    """Nearest-rank quantile: always a value that occurred. Raises: ValueError if empty."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values; wanted at least one to take a quantile of")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> float:
    """How noisy repeated runs are: (median - best) / best."""
    best = min(values)
    return (quantile(values, 0.5) - best) / best


def best(name: str, values: Sequence[float], *, unit: str = "ms") -> Measure:
    """The least of repeated runs, shown with how noisy they are. Raises: ValueError if empty."""
    note = f"best of {len(values)}, spread {spread(values):.0%}"
    return Measure(name=name, value=min(values), unit=unit, note=note)


def ratio_of_bests(
    name: str, ours: Sequence[float], theirs: Sequence[float], *, limit: float | None = None
) -> Measure:
    """How many times as long the best of ``ours`` took; that of single rounds is shown.

    Both have a value for each round. Raises: ValueError if empty.
    """
    rounds = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    note = f"rounds {rounds[0]:.2f} to {rounds[-1]:.2f}"
    return Measure(name=name, value=min(ours) / min(theirs), unit="x", limit=limit, note=note)


def table(reports: Iterable[Report]) -> str:
    """One table of every measure of every report."""
    rows = [("benchmark", "measure", "value", "limit", "", "note")]
    for report in reports:
        rows += [_row(report.name, measure) for measure in report.measures]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for name, measure, value, limit, verdict, note in rows:
        cells = [name.ljust(widths[0]), measure.ljust(widths[1])]
        cells += [value.rjust(widths[2]), limit.rjust(widths[3]), verdict.ljust(widths[4]), note]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _row(report: str, measure: Measure) -> tuple[str, str, str, str, str, str]:
    limit = "" if measure.limit is None else f"<= {_figure(measure.limit, measure.unit)}"
    value = _figure(measure.value, measure.unit)
    return report, measure.name, value, limit, measure.verdict, measure.note


def _figure(value: float, unit: str) -> str:
    digits = 2 if unit in ("x", "s", "GB", "steps") else 1
    text = f"{value:.0f}" if value.is_integer() and unit == "" else f"{value:.{digits}f}"
    return f"{text} {unit}".rstrip()
