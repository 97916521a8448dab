"""What an update or a push has come to: what is live now, what is not yet, and what to do."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from hotswap.cli.codes import ExitCode
from hotswap.cli.output import print_json, print_text
from hotswap.cli.terminal import ADMIN_KEY, API_KEY
from hotswap.counted import counted

if TYPE_CHECKING:
    from hotswap.client import Client, ServerState, UpdateResult

__all__ = ["conclude", "line_of", "looked_after"]

_LOOK_S = 5.0


def looked_after(client: Client) -> ServerState | None:
    """The server once the update is over; None when it does not say."""
    from hotswap.errors import HotswapError

    try:
        return client.state(within_s=_LOOK_S)
    except HotswapError:
        return None


def conclude(
    result: UpdateResult,
    now: ServerState | None,
    *,
    url: str,
    labelled: bool,
    as_json: bool,
) -> ExitCode:
    """Print one line, or an object of all that was told; and return the exit code.

    ``labelled`` says that the update brought a label of its own.
    """
    code, rest = _standing(now, url)
    if code is not ExitCode.NOT_WHOLE and result.coverage is not None:
        code = ExitCode.NOT_WHOLE
    if as_json:
        shown = asdict(result)
        del shown["shown"]
        shown["state"] = None if now is None else now.state
        shown["gate"] = None if now is None else now.gate
        print_json(shown)
    else:
        print_text(line_of(result, labelled=labelled, rest=rest))
    return code


def line_of(result: UpdateResult, *, labelled: bool = True, rest: str | None = None) -> str:
    """What an update did, and cost, for people; ``rest`` is why it is not live."""
    named, verb = _named(result, labelled=labelled), "is" if labelled else "are"
    began = f"{named} {verb} {'live' if rest is None else 'loaded'}"
    part = None
    if result.coverage is not None:
        began += " in part"
        part = f"{result.coverage}: push the rest"
    told = began + _label_kept(result, labelled=labelled) + _costs(result)
    return "; ".join(said for said in (told, part, rest) if said is not None)


def _named(result: UpdateResult, *, labelled: bool) -> str:
    return f"version {result.weight_version or '(no name)'}" if labelled else "new weights"


def _label_kept(result: UpdateResult, *, labelled: bool) -> str:
    if labelled:
        return ""
    if result.weight_version is None:
        return ", without a label"
    return f", still labelled {result.weight_version}"


def _costs(result: UpdateResult) -> str:
    if result.confirmed_by == "state":
        return "; the reply was lost, so its costs are not known"
    costs = [
        f"{label} {value:.1f} ms"
        for label, value in (("staged", result.staged_ms), ("paused", result.paused_ms))
        if value is not None
    ]
    if result.tensors is not None:
        costs.insert(0, f"{counted(result.tensors, 'tensor')}, {(result.bytes or 0) / 1e6:.1f} MB")
    if result.mode == "sparse":
        costs.insert(1, f"{result.elements_moved} elements changed")
    return f": {', '.join(costs)}" if costs else ""


def _standing(now: ServerState | None, url: str) -> tuple[ExitCode, str | None]:
    """The exit code, and why what was loaded does not generate yet, with what to do."""
    if now is None:
        return ExitCode.DONE, None
    if now.weights in ("torn", "never_loaded"):
        return ExitCode.NOT_WHOLE, (
            "the weights are not whole yet, and nothing is generated: send the others, or a full "
            "update"
        )
    if now.state == "sleeping":
        return ExitCode.STILL_PAUSED, (
            "the server still sleeps: wake it up with /wake_up or /resume_memory_occupation"
        )
    if now.gate is not None:
        return ExitCode.STILL_PAUSED, (
            f"the server is still paused ({now.gate}): continue with curl -X POST{_key_header()} "
            f"{url}/continue_generation"
        )
    return ExitCode.DONE, None


def _key_header() -> str:
    sent = next((name for name in (ADMIN_KEY, API_KEY) if os.environ.get(name)), None)
    return "" if sent is None else f' -H "Authorization: Bearer ${sent}"'
