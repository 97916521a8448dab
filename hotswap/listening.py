"""Taking connections while there are descriptors for them.

Rule: a full server rests. At its limit of descriptors it takes no connection for a second,
and some are always left for what it opens itself: checkpoints, processes, logs. Clients
that it does not take wait in the system's queue until others have closed theirs.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Mapping
from typing import Any

from hypercorn.config import Config, Sockets

__all__ = ["ListeningConfig", "ListeningSocket", "is_told"]

_log = logging.getLogger("hotswap.serve")

_MOST_RESERVED = 32
# Less than asyncio rests before it asks again, and more than it takes to ask 1024 times.
_REST_S = 0.5
_TELL_S = 60.0
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ListeningSocket(socket.socket):
    """Says once that there is no room, where a socket of the system says so at every call.

    asyncio rests for a second behind each such word, but before that it asks on, as often as
    its backlog is long, and every word begins anew when its second is over: on a full server
    that soon takes the whole of a core. ``limit`` is how many descriptors there may be.
    """

    def __init__(self, *, fileno: int, limit: int | None = None) -> None:
        super().__init__(fileno=fileno)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
        self.limit: float = float("inf") if soft == resource.RLIM_INFINITY else soft
        self._rests_until = self._quiet_until = 0.0

    def __repr__(self) -> str:
        return f"<ListeningSocket {self.fileno()} limit={self.limit:g}>"

    def accept(self) -> tuple[socket.socket, Any]:
        """As any socket's. Raises: OSError for no room, BlockingIOError while it rests."""
        try:
            self._check_room()
            return super().accept()
        except OSError as error:
            if error.errno in _NONE_LEFT:
                self._rest(error)
            raise

    def _check_room(self) -> None:
        # A new descriptor is the lowest that is free.
        lowest = os.dup(self.fileno())
        os.close(lowest)
        if lowest >= self.limit - min(_MOST_RESERVED, self.limit // 8):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _rest(self, error: OSError) -> None:
        """Return where asyncio has to hear of it. Raises: BlockingIOError where it has."""
        now = time.monotonic()
        if now < self._rests_until:
            raise BlockingIOError(errno.EAGAIN, "there was no room just now") from error
        self._rests_until = now + _REST_S
        if now >= self._quiet_until:
            self._quiet_until = now + _TELL_S
            _log.warning(
                "no descriptor is left for another connection (%s, limit %g); clients wait until "
                "others have closed theirs; raise the hard limit (ulimit -Hn) for more",
                error.strerror,
                self.limit,
            )


class ListeningConfig(Config):
    """hypercorn's, with a :class:`ListeningSocket` on a descriptor of its own of ``taken``."""

    def __init__(self, taken: socket.socket) -> None:
        super().__init__()
        self._taken = taken

    def __repr__(self) -> str:
        return f"<ListeningConfig {self._taken.fileno()}>"

    def create_sockets(self) -> Sockets:
        """The one socket; hypercorn owns and closes it."""
        listening = ListeningSocket(fileno=os.dup(self._taken.fileno()))
        listening.setblocking(False)
        return Sockets([], [listening], [])


def is_told(context: Mapping[str, object]) -> bool:
    """Whether a context of asyncio's exception handler is what a ListeningSocket has told."""
    error = context.get("exception")
    return isinstance(error, OSError) and error.errno in _NONE_LEFT and "socket" in context
