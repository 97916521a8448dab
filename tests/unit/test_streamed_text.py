from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotswap.streamed_text import StopFilter, StreamedText, cut_at_stop


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
    assert shown_of([text], stops) == shown
    assert shown_of(text, stops) == shown


def shown_of(pieces: Iterable[str], stops: list[str]) -> str:
    whole, stop_filter = "", StopFilter(stops)
    for piece in pieces:
        whole += piece
        stop_filter.push(piece)
    return whole[: stop_filter.length]


@given(st.text("ab", max_size=40), st.lists(st.text("abc", min_size=1, max_size=6), max_size=4))
def test_the_filter_agrees_with_a_search_of_the_whole_text(text: str, stops: list[str]) -> None:
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    seen = text[: min(ends, default=len(text))]
    held = [
        length for stop in stops for length in range(len(stop) + 1) if seen.endswith(stop[:length])
    ]

    assert shown_of(text, stops) == seen[: len(seen) - max(held, default=0)]


def test_a_long_stop_string_is_followed_to_its_end() -> None:
    """A text that is nearly the stop string; a search from each character takes minutes."""
    near, stop = "a" * 15_999 + "c", "a" * 16_000 + "b"

    assert shown_of(near * 2, [stop]) == near * 2
    assert shown_of([near + stop[:-1]], [stop]) == near
    assert shown_of([near + stop + near], [stop]) == near


def test_cut_at_stop() -> None:
    assert cut_at_stop("one END two", " END") == "one"
    assert cut_at_stop("one", "END") == "one"


def test_repr() -> None:
    assert repr(StreamedText(utf8)) == "<StreamedText 0 characters, 0 tokens held>"
