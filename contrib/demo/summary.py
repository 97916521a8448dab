"""What the demo says when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from contrib.demo.proof import Check, Evidence
from contrib.demo.streams import Load, Stream

__all__ = ["SwapResult", "show_summary"]

SENTENCE_WIDTH = 120

LEGEND = """\
  usual_gap_ms: between two tokens of a stream before the swap (median); blackout_ms: the longest
  across it. It is longer than paused_ms, a copy in memory, by up to two decode steps and by the KV
  that retracted requests compute again; with four calls also by what else is in the client's fence.
  four calls: pause (retract), flush, update, continue: the checkpoint is read inside the fence.
  one call: update with pause_mode retract: it is read while the streams run, on the same CPU.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult:
    """One swap: the server's own account and what the clients felt.

    ``usual_gap_ms`` is the median gap between two tokens of a stream before the swap,
    ``blackout_ms`` the longest one across it.
    """

    title: str
    version: str
    reply: dict[str, Any]
    usual_gap_ms: float
    blackout_ms: float
    evidence: Evidence


def show_summary(
    console: Console,
    *,
    first: Evidence,
    swaps: Sequence[SwapResult],
    load: Load,
    checks: Sequence[Check],
) -> None:
    """Print sentences, costs, spans, requests and the proof."""
    _sentences(console, first, swaps)
    _costs(console, swaps)
    _spans(console, load.streams)
    console.print(
        f"[bold]Requests[/bold]: {load.done} done, {load.aborted} aborted, "
        f"{len(load.lost)} lost; {sum(s.crossed for s in load.streams)} were written by more "
        f"than one version; {load.tokens} tokens",
        highlight=False,
    )
    for reason in load.lost[:5]:
        console.print(f"  lost: {escape(reason)}", highlight=False)
    console.print("\n[bold]Proof[/bold]")
    for check in checks:
        mark = "[green]yes[/green]" if check.holds else "[bold red]NO [/bold red]"
        console.print(f"  {mark}  {escape(check.claim)} ({escape(check.detail)})", highlight=False)


def _sentences(console: Console, first: Evidence, swaps: Sequence[SwapResult]) -> None:
    table = Table(box=None, show_header=False, title="One prompt", title_justify="left")
    table.add_row("at the start", escape(_short(first.sentence)))
    for swap in swaps:
        table.add_row(f"after {swap.title}", escape(_short(swap.evidence.sentence)))
    console.print(table, "")


def _costs(console: Console, swaps: Sequence[SwapResult]) -> None:
    table = Table(box=None, pad_edge=False, title="Swaps under load", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("staged_ms", "paused_ms", "elapsed_ms", "usual_gap_ms", "blackout_ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for swap in swaps:
        spent = [swap.reply[field] for field in ("staged_ms", "paused_ms", "elapsed_ms")]
        felt = [swap.usual_gap_ms, swap.blackout_ms]
        table.add_row(swap.title, *(f"{number:.0f}" for number in spent + felt))
    console.print(table)
    reply, live = swaps[-1].reply, len(swaps[-1].evidence.checksums)
    console.print(
        f"{LEGEND}  Each swap loads {reply['tensors_loaded']} tensors of the checkpoint, "
        f"{reply['bytes'] / 1e6:.0f} MB. The live model has {live}:\n"
        "  q, k, v are one there, and gate and up; what it computes for itself is counted too.\n",
        highlight=False,
    )


def _spans(console: Console, streams: Sequence[Stream]) -> None:
    console.print(
        "[bold]Who wrote what[/bold] (tokens by version, in order; null: A as it was at the\n"
        "start, which nobody had named)"
    )
    for stream in streams:
        spans = "  ".join(f"{span.version} {span.tokens}" for span in stream.spans)
        console.print(f"  stream {stream.number}: {escape(spans)}", highlight=False)
    console.print()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SENTENCE_WIDTH else line[: SENTENCE_WIDTH - 1] + "…"
