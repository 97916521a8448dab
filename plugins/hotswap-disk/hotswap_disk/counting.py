"""What the plug-in counts: one process, all its apps together."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

__all__ = ["OPEN", "OPENED"]

OPENED = Counter(
    "hotswap_disk_checkpoints_total",
    "Checkpoint directories that were asked for: opened or rejected.",
    ("outcome",),
    registry=None,
)
for _outcome in ("opened", "rejected"):
    OPENED.labels(_outcome)

OPEN = Gauge("hotswap_disk_checkpoints_open", "Checkpoints that are open now.", registry=None)
