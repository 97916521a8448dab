"""What the process writes: lines for people, or one JSON object a line for programs.

There is no torch in here: the command line sets this up before it loads plug-ins.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TypeAlias

from hotswap.foreign import trace_of
from hotswap.redacted import without_passwords

__all__ = [
    "JsonLines",
    "TextLines",
    "configure_logs",
    "one_line",
    "tell_of_server",
    "without_passwords",
]

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# Clients choose request ids and versions: these must neither begin a line of their own
# nor move the cursor of whoever reads the log, nor turn the text around or hide part of it.
_CONTROL = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)

# Below this they write every header of HTTP/2, keys among them.
_TELLS_HEADERS = "hpack"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

Context = Callable[[], Mapping[str, object]]


def one_line(text: str) -> str:
    """``text`` with its control characters as escapes: it begins no line, and moves no cursor."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


ExcInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class _Careful(logging.Formatter):
    """Shows exceptions of plug-ins, whose every attribute may raise, ``SystemExit`` too."""

    def formatException(self, ei: ExcInfo) -> str:
        """The traceback of ``ei``. Never raises."""
        return super().formatException(ei) if ei[1] is None else trace_of(ei[1])


class TextLines(_Careful):
    """Lines for people; a message is one line, and an exception takes several."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without the exception; control characters as escapes."""
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        return without_passwords(super().format(record))


class JsonLines(_Careful):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, and fields.

    Fields are those of ``extra``, and what ``context`` says at that moment; an exception
    is the text in ``exception``. A field never replaces one of the first four.
    """

    def __init__(self) -> None:
        super().__init__()
        self.context: Context = dict

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return without_passwords(_dumped({**line, **self.context(), **fields, **line}))


def configure_logs(*, level: str, style: str) -> None:
    """Write records of ``level`` and above to standard error, as ``text`` or ``json``.

    Does nothing where logging is set up already, as ``logging.basicConfig``.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger(_TELLS_HEADERS).setLevel(max(root.level, logging.INFO))
    if style == "json":
        # Python writes these by itself, in lines that no program expects.
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_of_thread


def tell_of_server(context: Context) -> None:
    """Have every JSON line say what ``context`` returns. Called on any thread."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter.context = context


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
    logging.getLogger("hotswap").critical("uncaught %s", kind.__name__, exc_info=error)


def _log_uncaught_of_thread(seen: threading.ExceptHookArgs) -> None:
    name = seen.thread.name if seen.thread is not None else "a thread"
    logging.getLogger("hotswap").critical(
        "uncaught %s in %s", seen.exc_type.__name__, name, exc_info=seen.exc_value
    )


def _dumped(line: Mapping[str, object]) -> str:
    return json.dumps(line, default=str)
