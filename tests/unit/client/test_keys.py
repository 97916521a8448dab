"""What a client says of the keys that it sends: which one, what to do, and never the key."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
import torch

from hotswap.client import AsyncClient, Client, ReplyMalformed, RequestRefused
from hotswap.errors import HotswapError, UpdateRejected
from tests.unit.answering import Answer, answering
from tests.unit.client.script import status

API, ADMIN = "api-k3y", 'adm"in\\k3y'
TRUTH = status().body
NO_KEY = "no key was sent: give api_key, or admin_key for what controls the server"
API_SENT = "the api_key that was sent (at the terminal HOTSWAP_API_KEY) is not what it takes here"
ADMIN_SENT = "the admin_key that was sent (at the terminal HOTSWAP_ADMIN_API_KEY) is not that of"


def refusing(code: int, path: str) -> Callable[[str], Answer]:
    body = json.dumps({"error": {"code": "unauthorized", "message": "no"}}).encode()
    return lambda asked: (code, {}, body) if asked == path else (200, {}, TRUTH)


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize(
    ("api_key", "admin_key", "looks", "pauses"),
    [
        (None, None, NO_KEY, NO_KEY),
        (API, None, API_SENT, API_SENT),
        (None, ADMIN, NO_KEY, ADMIN_SENT),
        (API, ADMIN, API_SENT, ADMIN_SENT),
    ],
)
async def test_a_key_that_is_missing_and_a_wrong_one_are_told_apart(
    code: int, api_key: str | None, admin_key: str | None, looks: str, pauses: str
) -> None:
    for path, said in (
        ("/status", looks),
        ("/pause_generation", pauses),
        ("/update_weights_from_disk", pauses),
        ("/hotswap/v1/events", looks),
    ):
        with answering(refusing(code, path)) as url:
            with (
                Client(url, api_key=api_key, admin_key=admin_key, server="hotswap") as client,
                pytest.raises(RequestRefused) as caught,
            ):
                call(client, path)
            assert f": the server answered {code}: " in str(caught.value)
            assert said in str(caught.value)
            async with AsyncClient(
                url, api_key=api_key, admin_key=admin_key, server="hotswap"
            ) as other:
                if path == "/status":
                    with pytest.raises(RequestRefused) as caught:
                        await other.state()
                    assert said in str(caught.value)


def call(client: Client, path: str) -> None:
    match path:
        case "/status":
            client.state()
        case "/pause_generation":
            client.pause()
        case "/hotswap/v1/events":
            with client.events() as events:
                next(events)
        case _:
            client.update("/b")


ECHOES = {
    "message": (400, json.dumps({"message": f"{API} {ADMIN}"}).encode()),
    "envelope": (409, json.dumps({"error": {"code": "conflict", "message": ADMIN}}).encode()),
    "text": (500, f"bad header Bearer {API}, Bearer {ADMIN}".encode()),
    "type": (200, json.dumps({**json.loads(TRUTH), "state": [API, ADMIN]}).encode()),
    "page": (404, f"<html><title>{API} {ADMIN}</title></html>".encode()),
}


@pytest.mark.parametrize("echo", ECHOES)
def test_a_key_that_a_server_echoes_is_in_no_error(echo: str) -> None:
    code, body = ECHOES[echo]
    shown = list[str]()
    with (
        answering(lambda _: (code, {}, body)) as url,
        Client(url, api_key=API, admin_key=ADMIN, server="hotswap") as client,
    ):
        calls: list[Callable[[], object]] = [
            client.state,
            client.pause,
            lambda: client.update("/b"),
            lambda: client.push({"a": torch.ones(1)}, transport="body"),
        ]
        for do in calls if code != 200 else calls[:1]:
            with pytest.raises(HotswapError) as caught:
                do()
            error: BaseException | None = caught.value
            while error is not None:
                shown.append(f"{error} {error!r}")
                error = error.__cause__ or error.__context__
    assert len(shown) >= (4 if code != 200 else 1)
    for each in (API, ADMIN, json.dumps(ADMIN)[1:-1], repr(ADMIN)[1:-1]):
        assert not any(each in text for text in shown)
    assert any("***" in text for text in shown)


def test_nor_in_a_redirect_or_in_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        answering(lambda _: (302, {"location": f"http://x/?{ADMIN}"}, b"")) as url,
        Client(url, api_key=API, admin_key=ADMIN, server="hotswap") as client,
        pytest.raises(RequestRefused, match=r"http://x/\?\*\*\*"),
    ):
        client.state()
    answers: list[Answer] = [(502, {}, API.encode()), (200, {}, TRUTH)]
    with (
        caplog.at_level(logging.WARNING, "hotswap.client"),
        answering(lambda _: answers.pop(0)) as url,
        Client(url, api_key=API, server="hotswap") as client,
    ):
        client.state()
    assert "something on the way answered 502 in its place: ***" in caplog.text
    assert API not in caplog.text


def test_a_key_in_a_value_that_is_wrong_is_hidden_too() -> None:
    lie = json.dumps({**json.loads(TRUTH), "updates": [{"since_ms": API}]}).encode()
    with (
        answering(lambda _: (200, {}, lie)) as url,
        Client(url, api_key=API, server="hotswap") as client,
        pytest.raises(ReplyMalformed, match=r'updates\[0\]\.since_ms "\*\*\*"'),
    ):
        client.state()


def test_a_key_of_three_letters_guards_nothing_and_hides_nothing() -> None:
    body = json.dumps({"message": "no such path"}).encode()
    with (
        answering(lambda asked: (400, {}, body) if "update" in asked else (200, {}, TRUTH)) as url,
        Client(url, api_key="no", server="hotswap") as client,
        pytest.raises(UpdateRejected, match="no such path"),
    ):
        client.update("/b")
