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


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult:
    """One swap: the server's own account and what the clients felt."""

    title: str
    version: str
    reply: dict[str, Any]
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
    table = Table(box=None, title="Swaps under load", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("staged_ms", "paused_ms", "elapsed_ms", "blackout_ms", "tensors", "MB"):
        table.add_column(heading, justify="right")
    for swap in swaps:
        reply = swap.reply
        numbers = [reply["staged_ms"], reply["paused_ms"], reply["elapsed_ms"], swap.blackout_ms]
        table.add_row(
            swap.title,
            *(f"{number:.0f}" for number in numbers),
            str(reply["tensors_loaded"]),
            f"{reply['bytes'] / 1e6:.0f}",
        )
    console.print(table)
    console.print(
        "  four calls: pause (retract), flush, update, continue: the client's fence is around the\n"
        "  reading of the checkpoint too. one call: update with pause_mode retract: it is read\n"
        "  while they run. blackout_ms: the longest silence between two tokens of a stream.\n",
        highlight=False,
    )


def _spans(console: Console, streams: Sequence[Stream]) -> None:
    console.print("[bold]Who wrote what[/bold] (tokens by version, in order)")
    for stream in streams:
        spans = "  ".join(f"{span.version} {span.tokens}" for span in stream.spans)
        console.print(f"  stream {stream.number}: {escape(spans)}", highlight=False)
    console.print()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SENTENCE_WIDTH else line[: SENTENCE_WIDTH - 1] + "…"
