import copy
import hmac
import pickle
import traceback
from typing import Any

import msgspec
import pytest

from hotswap.api_keys import ApiKey
from hotswap.settings import Settings, SettingsError, settings_from

SECRET = "sk-Q7~w!x"


def test_a_key_matches_itself_and_nothing_else() -> None:
    key = ApiKey(SECRET)

    assert key.matches(SECRET.encode())
    others = (b"", b"None", SECRET[:-1].encode(), SECRET.encode() + b" ", SECRET.upper().encode())
    assert not any(key.matches(sent) for sent in (*others, b"\xff\xfe", b"\0" * 10_000))
    assert key == ApiKey(SECRET)
    assert key != ApiKey("other")
    assert hash(key) == hash(ApiKey(SECRET))
    assert key != SECRET


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def noting(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    assert not ApiKey(SECRET).matches(b"x")
    # Both sides have one length, whatever was sent.
    assert [(len(a), len(b)) for a, b in compared] == [(32, 32)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        (" ", "a blank"),
        ("a b", "a blank"),
        ("a\n", "a blank"),
        ("schl\u00fcssel", "outside ASCII"),
        ("a\0", "a blank"),
        ("None", "have none"),
    ],
)
def test_a_key_that_no_client_can_send_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ApiKey(text)


def test_nothing_shows_the_key() -> None:
    key = ApiKey(SECRET)
    settings = Settings(api_key=key, admin_api_key=key)
    shown = [repr(key), str(key), f"{key}", repr(settings), repr(copy.deepcopy(settings))]
    shown.append(repr(pickle.dumps(key)))
    assert not any(SECRET in text for text in shown)
    with pytest.raises(TypeError):
        msgspec.json.encode(settings)


@pytest.mark.parametrize(
    ("variables", "api", "admin"),
    [
        ({}, None, None),
        ({"HOTSWAP_API_KEY": "a"}, "a", None),
        ({"GR_HTTP_API_KEY": "a"}, "a", None),
        ({"HOTSWAP_API_KEY": "a", "GR_HTTP_API_KEY": "b"}, "a", None),
        ({"HOTSWAP_ADMIN_API_KEY": "a"}, None, "a"),
        ({"HOTSWAP_ADMIN_API_KEY": "a", "GR_HTTP_API_KEY": "b"}, "b", "a"),
    ],
)
def test_keys_come_from_the_environment(
    variables: dict[str, str], api: str | None, admin: str | None
) -> None:
    settings = settings_from(environ=variables)

    assert settings.api_key == (None if api is None else ApiKey(api))
    assert settings.admin_api_key == (None if admin is None else ApiKey(admin))


@pytest.mark.parametrize("name", ["HOTSWAP_API_KEY", "HOTSWAP_ADMIN_API_KEY", "GR_HTTP_API_KEY"])
@pytest.mark.parametrize("text", ["", " ", "None", f"{SECRET} {SECRET}", f"{SECRET}\u00e9"])
def test_a_bad_key_stops_the_start_and_is_not_repeated(name: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(environ={name: text})

    told = "".join(traceback.format_exception(caught.value))
    assert SECRET not in told
    assert "API_KEY" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_take_no_bare_text_for_a_key() -> None:
    wrong: Any = {"api_key": SECRET}
    with pytest.raises(SettingsError, match="--api-key is a str, wanted an ApiKey") as caught:
        Settings(**wrong)

    assert SECRET not in str(caught.value)
