"""A picture of phases one after the other: a bar for each way, as SVG.

The same figures give the same bytes. Text is in the reader's own fonts and colour, so that it is
legible on light and on dark pages; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Bar", "picture"]

_WIDTH, _LEFT, _RIGHT, _TOP = 760, 170, 70, 64
_BAR, _STEP, _TICK = 26, 52, 12
_TICKS = 5
_LEAST = 2.0
"""A phase that is shorter than a stroke would be invisible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """``label``, a second line below it, and seconds of each phase, in order."""

    label: str
    note: str
    phases: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """All phases."""
        return sum(self.phases.values())


def picture(title: str, bars: Sequence[Bar], *, colours: Mapping[str, str]) -> str:
    """The SVG of ``bars``; ``colours`` has one for each phase. Raises: ValueError without bars."""
    if not bars:
        raise ValueError("no bars; wanted at least one to draw")
    end = _round_up(max(bar.total_s for bar in bars))
    height = _TOP + _STEP * len(bars) + 36
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>text{font:13px sans-serif;fill:#444}.n{font-size:11px;fill:#777}"
        ".g{stroke:#999;stroke-opacity:.4}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.n{fill:#aaa}}</style>",
        _text(12, 22, title),
        *_legend(colours),
        *_axis(end, height - 36),
    ]
    for number, bar in enumerate(bars):
        lines += _drawn(bar, _TOP + _STEP * number + 8, end, colours)
    return "\n".join([*lines, "</svg>", ""])


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    x = _LEFT
    for phase, colour in colours.items():
        yield f'<rect x="{x}" y="36" width="11" height="11" fill="{colour}"/>'
        yield _text(x + 16, 46, phase)
        x += 32 + 7 * len(phase)


def _axis(end: float, bottom: int) -> Iterator[str]:
    for number in range(_TICKS + 1):
        seconds = end * number / _TICKS
        x = _at(seconds, end)
        yield f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{bottom}"/>'
        yield _text(x, bottom + 16, f"{seconds:.2g} s", more=' class="n" text-anchor="middle"')


def _drawn(bar: Bar, y: int, end: float, colours: Mapping[str, str]) -> Iterator[str]:
    yield _text(_LEFT - _TICK, y + 12, bar.label, more=' text-anchor="end"')
    yield _text(_LEFT - _TICK, y + 27, bar.note, more=' class="n" text-anchor="end"')
    begin = 0.0
    for phase, seconds in bar.phases.items():
        x, width = _at(begin, end), _at(seconds, end) - _LEFT
        shown = f"{phase}: {1000 * seconds:.0f} ms"
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{max(width, _LEAST):.1f}" height="{_BAR}" '
            f'fill="{colours[phase]}"><title>{escape(shown)}</title></rect>'
        )
        begin += seconds
    yield _text(_at(begin, end) + 6, y + 18, f"{begin:.2f} s")


def _at(seconds: float, end: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / end


def _round_up(seconds: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below ``seconds``."""
    scale = 1e-3
    while True:
        for number in (1, 2, 5):
            if scale * number >= seconds:
                return scale * number
        scale *= 10


def _text(x: float, y: float, text: str, *, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(text)}</text>'
