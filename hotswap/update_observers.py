"""Whoever hears of every step of every update."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hotswap.attempt import UpdateNews

__all__ = ["UpdateObservers"]

_log = logging.getLogger("hotswap.state")


class UpdateObservers:
    """Told in the order of joining, on the event loop."""

    def __init__(self) -> None:
        self._observers: list[Callable[[UpdateNews], None]] = []

    def __repr__(self) -> str:
        return f"<UpdateObservers {len(self._observers)}>"

    def add(self, observer: Callable[[UpdateNews], None]) -> None:
        """Tell ``observer`` too, from now on."""
        self._observers.append(observer)

    def tell(self, news: UpdateNews) -> None:
        """Tell everybody. What an observer raises is logged and changes nothing."""
        for observer in self._observers:
            try:
                observer(news)
            except BaseException:
                _log.exception(
                    "an observer failed on update %d %s", news.number, news.outcome or news.phase
                )
