"""``hotswap state``: one look at a server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hotswap.cli.bars import bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.output import fail, print_json, print_lines, retries_shown
from hotswap.counted import counted

if TYPE_CHECKING:
    from hotswap.client import ServerState

__all__ = ["run_state", "state_lines", "state_object"]


def run_state(options: argparse.Namespace) -> ExitCode:
    """Print it; with ``--wait``, once the server is ready."""
    from hotswap.cli.server_address import blocking_client
    from hotswap.errors import HotswapError

    try:
        with retries_shown("state"), blocking_client(options) as client:
            if options.wait is not None:
                with bars(shown=not options.json, begins="waiting until it is ready"):
                    client.wait_ready(within_s=options.wait)
            seen = client.state()
    except (HotswapError, ValueError) as error:
        return fail("state", error, as_json=options.json)
    if options.json:
        print_json(state_object(seen))
    else:
        print_lines(f"{name:<10} {value}" for name, value in state_lines(seen))
    return ExitCode.DONE


def state_object(seen: ServerState) -> dict[str, Any]:
    """As JSON; what the server itself sent is left out, since it is nearly the same."""
    shown = asdict(seen)
    del shown["shown"]
    return shown


def state_lines(seen: ServerState) -> list[tuple[str, str]]:
    """Name and value of everything that the server told."""
    gate = None if seen.state is None else (seen.gate or "open")
    counts = None if seen.running is None else f"{seen.running} running, {seen.waiting} waiting"
    rows = {
        "server": f"{seen.server} {seen.server_version or ''}".strip(),
        "state": seen.state,
        "ready": "yes" if seen.ready else f"no: {', '.join(seen.reasons)}",
        "gate": gate,
        "weights": seen.weights,
        "version": seen.weight_version or "(no name)",
        "step": seen.token_step,
        "epoch": seen.weight_epoch,
        "updates": seen.weight_update_count,
        "requests": counts,
        "model": seen.model_path,
    }
    if seen.coverage is not None:
        rows["coverage"] = f"{seen.coverage}: push the rest"
    if seen.session is not None:
        rows["session"] = f"{seen.session}: commit it or abort it"
    if seen.follow is not None:
        rows["follow"] = _follow_line(seen.follow)
    lines = [(name, str(value)) for name, value in rows.items() if value is not None]
    for update in seen.updates:
        since = "" if update.since_ms is None else f" for {update.since_ms / 1000:.1f} s"
        lines.append(("update", f"{update}{since}: {update.source}"))
    return lines


def _follow_line(follow: Mapping[str, Any]) -> str:
    """What a follower does, how far it is, and why it does not get on."""
    numbers = ", ".join(
        f"{name} {'-' if number is None else number}"
        for name in ("live", "pulled", "newest")
        for number in [follow.get(f"{name}_version")]
    )
    told = f"{follow.get('state')} ({numbers})"
    if follow.get("versions_behind"):
        size, since = follow.get("bytes_behind") or 0, follow.get("seconds_behind") or 0.0
        versions = counted(follow["versions_behind"], "version")
        told += f", {versions}, {size / 1e6:.1f} MB and {since:.0f} s behind"
    return told + (f": {follow['reason']}" if follow.get("reason") else "")
