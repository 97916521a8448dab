"""Log lines: for people, and for programs."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotswap.logs import JsonLines, TextLines, configure_logs, tell_of_server
from hotswap.testing.rig import make_rig, update_from
from hotswap.types import PauseMode


@pytest.fixture
def formatter() -> JsonLines:
    return JsonLines()


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """The root logger as a new process has it; pytest's handlers are put back."""
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, sys.excepthook
    headers = logging.getLogger("hpack")
    root.handlers.clear()
    thread_hook = threading.excepthook
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        headers.setLevel(logging.NOTSET)
        sys.excepthook, threading.excepthook = hook, thread_hook
        logging.captureWarnings(False)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("hotswap.test").makeRecord(
        "hotswap.test", logging.WARNING, __file__, 1, message, args, None, extra=extra
    )


def test_a_line_has_the_four_fields_and_those_of_extra(formatter: JsonLines) -> None:
    line = json.loads(formatter.format(record("%s ended", "r1", rid="r1", path=Path("/x"))))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "hotswap.test",
        "message": "r1 ended",
        "rid": "r1",
        "path": "/x",
    }


def test_line_breaks_and_exceptions_stay_inside_one_line(formatter: JsonLines) -> None:
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        seen = record("rid 'a\nb'")
        seen.exc_info = sys.exc_info()
    text = formatter.format(seen)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "rid 'a\nb'"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("RuntimeError: two\nlines")


def test_what_clients_choose_begins_no_line_and_moves_no_cursor(formatter: JsonLines) -> None:
    chosen = "r\n2026 ERROR forged\r\x1b[2J\u2028\x85 é\t."
    text = TextLines().format(record("request %s ended", chosen))
    assert len(text.splitlines()) == len(formatter.format(record(chosen)).splitlines()) == 1
    assert text.endswith("request r\\n2026 ERROR forged\\r\\x1b[2J\\u2028\\x85 é\t. ended")
    assert json.loads(formatter.format(record(chosen)))["message"] == chosen


def test_fields_do_not_replace_what_a_line_is(formatter: JsonLines) -> None:
    formatter.context = lambda: {"state": "serving", "weight_epoch": 3, "message": "no"}
    line = json.loads(formatter.format(record("yes", state="paused", level="no", logger="no")))
    assert (line["state"], line["weight_epoch"]) == ("paused", 3)
    assert (line["message"], line["level"], line["logger"]) == ("yes", "warning", "hotswap.test")


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
def test_passwords_of_urls_are_left_out(lines: logging.Formatter) -> None:
    text = lines.format(record("update from s3://me:secret@host/a?x=1@2", source="http://k@h/b"))
    assert "secret" not in text
    assert "s3://***@host/a?***" in text
    if isinstance(lines, JsonLines):
        assert json.loads(text)["source"] == "http://***@h/b"


def test_json_is_set_up_once() -> None:
    with bare_root() as root:
        configure_logs(level="info", style="json")
        configure_logs(level="debug", style="text")
        tell_of_server(lambda: {"state": "serving"})
        (handler,) = root.handlers
        assert root.level == logging.INFO
        assert json.loads(handler.format(record("x")))["state"] == "serving"


def test_text_is_as_it_was() -> None:
    with bare_root() as root:
        configure_logs(level="warning", style="text")
        tell_of_server(lambda: {"state": "serving"})
        (handler,) = root.handlers
        assert handler.format(record("x")).endswith(" WARNING hotswap.test: x")


async def test_states_and_updates_bring_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = make_rig()
    async with rig.controller as controller:
        await controller.pause(PauseMode.RETRACT)
        await controller.update(update_from("A", version="7"))

    def fields(logger: str) -> list[dict[str, Any]]:
        return [vars(found) for found in caplog.records if found.name == logger]

    paused = fields("hotswap.state")[0]
    assert (paused["old_state"], paused["state"], paused["gate"]) == (
        "serving",
        "paused",
        "retract",
    )
    (update,) = fields("hotswap.update")
    assert (update["strategy"], update["outcome"], update["weight_version"]) == (
        "fake",
        "committed",
        "7",
    )
    assert update["weight_epoch"] == 1
    assert 0 <= update["paused_ms"] <= update["elapsed_ms"]
    assert json.loads(JsonLines().format(caplog.records[-1]))["update"] == 1


UNCAUGHT = """
import threading, warnings
from hotswap.logs import configure_logs
configure_logs(level="info", style="json")
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
raise RuntimeError("the end")
"""


def test_what_python_itself_would_write_is_json_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, check=False, timeout=60
    )
    warning, thread, end = map(json.loads, ran.stderr.splitlines())
    assert (warning["logger"], warning["level"]) == ("py.warnings", "warning")
    assert thread["message"] == "uncaught ZeroDivisionError in worker"
    assert end["exception"].endswith("RuntimeError: the end")
    assert ran.returncode == 1


@pytest.mark.parametrize(
    ("level", "least"), [("debug", logging.INFO), ("info", logging.INFO), ("error", logging.ERROR)]
)
def test_what_writes_headers_writes_none(level: str, least: int) -> None:
    with bare_root():
        configure_logs(level=level, style="text")

        assert logging.getLogger("hpack.hpack").getEffectiveLevel() == least


@pytest.mark.parametrize("style", [TextLines, JsonLines])
def test_an_exception_that_cannot_be_looked_at_is_logged(style: type[logging.Formatter]) -> None:
    """Whatever its attributes raise: nothing leaves the formatter."""

    def read(self: object) -> object:
        raise SystemExit(4)

    for attribute in ("__class__", "__traceback__", "__cause__", "__context__", "__notes__"):
        hostile = type("Hostile", (Exception,), {attribute: property(read)})
        try:
            raise hostile("mine")
        except Exception:
            told = record("failed")
            told.exc_info = sys.exc_info()
        text = style().format(told)
        assert "failed" in text
        assert "Hostile: mine" in text
        assert "raise hostile" in text
