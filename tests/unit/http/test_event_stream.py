"""Server-sent events to readers that take their time, or never read."""

import json

import anyio
import pytest
from starlette.types import Message

from hotswap.http.errors import ClientGone
from hotswap.http.event_stream import EventStream
from hotswap.http.replies import encode


class Reader:
    """Takes ``room`` messages, and then none."""

    def __init__(self, room: int) -> None:
        self.taken: list[Message] = []
        self._room = room

    async def send(self, message: Message) -> None:
        if len(self.taken) == self._room:
            await anyio.sleep_forever()
        self.taken.append(message)


async def test_a_stream_from_its_head_to_its_end() -> None:
    reader = Reader(9)
    stream = EventStream(reader.send, stall_s=60)
    await stream.begin(headers=[(b"x-a", b"b")])
    await stream.payload(b"1")
    await stream.frames(b": heartbeat\n\n")
    await stream.end()

    start, *bodies = reader.taken
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-a": b"b",
    }
    assert [(body["body"], body["more_body"]) for body in bodies] == [
        (b"data: 1\n\n", True),
        (b": heartbeat\n\n", True),
        (b"", False),
    ]
    assert repr(stream) == "<EventStream stall 60 s>"


@pytest.mark.parametrize("form", ["payload", "frames"])
async def test_each_event_is_whole_to_a_reader_that_splits_lines_by_unicode(form: str) -> None:
    """As httpx's iter_lines and str.splitlines do; JSON's own escapes keep them whole."""
    every = "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0xA0, 0x2027, 0x2028, 0x2029, 0x202A]))
    reader = Reader(2)
    stream = EventStream(reader.send, stall_s=60)
    if form == "payload":
        await stream.payload(encode({"text": every}))
    else:
        await stream.frames(b"data: " + encode({"text": every}) + b"\n\n")

    (sent,) = reader.taken
    line, empty = sent["body"].decode().splitlines()
    assert empty == ""
    assert json.loads(line.removeprefix("data: ")) == {"text": every}


@pytest.mark.parametrize("room", range(4))
async def test_a_reader_that_stops_anywhere_counts_as_gone(
    room: int, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(room)
    stream = EventStream(reader.send, stall_s=0)

    async def everything() -> None:
        await stream.begin()
        await stream.payload(b"1")
        await stream.payload(b"2")
        await stream.end()

    with pytest.raises(ClientGone):
        await everything()
    assert len(reader.taken) == room
    assert "read nothing for 0 s" in caplog.text


async def test_several_tasks_send_one_after_the_other() -> None:
    sending, most = 0, 0

    async def send(_message: Message) -> None:
        nonlocal sending, most
        sending += 1
        most = max(most, sending)
        await anyio.lowlevel.checkpoint()
        sending -= 1

    stream = EventStream(send, stall_s=60)
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(stream.payload, b"%d" % number)
    assert most == 1
