"""How a server that follows a stream stands, at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from hotswap.follow import FollowStatus

__all__ = ["follow_numbers"]


def follow_numbers(status: FollowStatus) -> Iterator[tuple[str, str, float]]:
    """Name, what it says, value. Any thread: a status never changes."""
    behind = status.behind
    yield "hotswap_follow_versions_behind", "Newer versions than the live one.", behind.versions
    yield "hotswap_follow_bytes_behind", "Bytes of those versions.", behind.size_bytes
    yield (
        "hotswap_follow_seconds_behind",
        "Since the first of those versions was seen.",
        status.seconds_behind,
    )
    numbers = {"newest": status.newest, "pulled": status.pulled, "live": status.live}
    for name, number in numbers.items():
        # One that is not known is none: 0 is the base.
        value = -1 if number is None else number
        yield f"hotswap_follow_{name}_version", f"The {name} version; -1 for none.", value
    yield (
        "hotswap_follow_displaced",
        "1 while the live weights are somebody else's.",
        status.is_displaced,
    )
    yield "hotswap_follow_reached", "1 once the server may be ready.", status.reached
    yield "hotswap_follow_failing", "1 while something is tried again.", status.kind is not None
    yield "hotswap_follow_looks_total", "Looks at the source.", status.looks
    yield "hotswap_follow_failures_total", "Looks, pulls and commits that failed.", status.failures
