"""What happens in a server, in order, for those who watch it."""

from hotswap.events.log import Event, EventLog, Gap, Reader
from hotswap.events.sources import publish_change, publish_follow, publish_pull, publish_update

__all__ = [
    "Event",
    "EventLog",
    "Gap",
    "Reader",
    "publish_change",
    "publish_follow",
    "publish_pull",
    "publish_update",
]
