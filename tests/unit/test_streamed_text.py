from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotswap.streamed_text import StreamedText, cut_at_stop, showable


def utf8(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


@given(st.text(max_size=60))
def test_every_state_is_a_prefix_and_the_end_is_everything(text: str) -> None:
    streamed = StreamedText(utf8)
    for byte in text.encode():
        streamed.push(byte)
        assert text.startswith(streamed.text)
    assert streamed.text == text


def test_an_incomplete_character_is_held_back() -> None:
    streamed = StreamedText(utf8)
    seen = []
    for byte in "a€".encode():
        streamed.push(byte)
        seen.append(streamed.text)

    assert seen == ["a", "a", "a", "a€"]


def test_bytes_that_are_no_character_do_not_hold_the_text_for_ever() -> None:
    streamed = StreamedText(utf8)
    for _ in range(40):
        streamed.push(0xFF)

    assert len(streamed.text) >= 24


@given(st.binary(max_size=300))
def test_a_token_is_decoded_with_few_others(tokens: bytes) -> None:
    longest = 0

    def counting(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return utf8(token_ids)

    streamed = StreamedText(counting)
    for token in tokens:
        streamed.push(token)

    assert longest <= 32


def test_context_decides_how_a_token_looks() -> None:
    """Some tokenizers drop the space of the first token that they decode."""
    words = {1: " Hello", 2: " world"}

    def stripping(token_ids: Sequence[int]) -> str:
        return "".join(words[token] for token in token_ids).removeprefix(" ")

    streamed = StreamedText(stripping)
    streamed.push(1)
    streamed.push(2)

    assert streamed.text == "Hello world"


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("abc", ["xyz"], "abc"),
        ("abcx", ["xyz"], "abc"),
        ("abcxy", ["xyz"], "abc"),
        ("abcxy", ["y", "xyz"], "abc"),
        ("a xyz", ["xyz"], "a "),
        ("a xyz b", ["xyz"], "a "),
        ("ab", [], "ab"),
        ("aa", ["aaa"], ""),
    ],
)
def test_what_may_become_a_stop_string_is_not_shown(
    text: str, stops: list[str], shown: str
) -> None:
    assert showable(text, stops) == shown


def test_cut_at_stop() -> None:
    assert cut_at_stop("one END two", " END") == "one"
    assert cut_at_stop("one", "END") == "one"


def test_repr() -> None:
    assert repr(StreamedText(utf8)) == "<StreamedText 0 characters, 0 tokens held>"
