from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.engine.stopping import Finish, StopRule
from hotswap.engine.tokenizer import TextCodec, load_codec
from hotswap.seams import SamplingParams
from hotswap.streamed_text import StreamedText
from hotswap.testing.tiny_tokenizer import EOS_ID, build_tokenizer


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(build_tokenizer(320))


def rule(codec: TextCodec, *stops: str, room: int = 100) -> StopRule:
    params = SamplingParams(stop=stops, max_new_tokens=100)
    return StopRule(params, eos=frozenset({EOS_ID}), room=room, codec=codec)


def push_text(stop_rule: StopRule, codec: TextCodec, text: str) -> list[Finish | None]:
    # A byte a token: the hardest way to cut a text.
    return [stop_rule.push(byte) for byte in text.encode()]


@pytest.mark.parametrize("text", ["plain", "Grüße und 日本", "a\n\n b", "🎉🎉"])
def test_pieces_add_up_and_hold_whole_characters(text: str, codec: TextCodec) -> None:
    stream = StreamedText(codec.decode)
    pieces = [stream.push(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) == len(text)


def test_merged_and_special_tokens_stream_too(codec: TextCodec) -> None:
    stream = StreamedText(codec.decode)
    ids = [*codec.encode("the other"), EOS_ID, *codec.encode(" there")]
    assert "".join(map(stream.push, ids)) == "the other there"


def test_bytes_that_are_no_text_do_not_hold_it_up_for_ever(codec: TextCodec) -> None:
    stream = StreamedText(codec.decode)
    seen = "".join(stream.push(0x80) for _ in range(40)) + stream.push(ord("x"))
    assert seen == "\N{REPLACEMENT CHARACTER}" * 40 + "x"


def test_a_stop_string_matches_across_tokens(codec: TextCodec) -> None:
    seen = push_text(rule(codec, "日本", "never"), codec, "in 日日本")
    assert seen[:-1] == [None] * (len(seen) - 1)
    assert seen[-1] == Finish(reason="stop", matched="日本")


def test_of_two_stop_strings_the_one_that_begins_first_counts(codec: TextCodec) -> None:
    assert push_text(rule(codec, "c", "abc"), codec, "abc")[-1] == Finish(
        reason="stop", matched="abc"
    )


def test_one_character_stops_at_once(codec: TextCodec) -> None:
    assert push_text(rule(codec, "\n"), codec, "ab\n")[-1] == Finish(reason="stop", matched="\n")


def test_room_counts_like_max_new_tokens(codec: TextCodec) -> None:
    assert push_text(rule(codec, room=3), codec, "abc") == [None, None, Finish(reason="length")]


def test_a_stop_at_the_last_token_is_a_stop(codec: TextCodec) -> None:
    assert push_text(rule(codec, "c", room=3), codec, "abc")[-1] == Finish(
        reason="stop", matched="c"
    )
    assert rule(codec, room=1).push(EOS_ID) == Finish(reason="stop", matched=EOS_ID)


def test_nothing_stops_a_text_before_it_is_long_enough(codec: TextCodec) -> None:
    params = SamplingParams(stop=("b",), max_new_tokens=6, min_new_tokens=3)
    stop_rule = StopRule(params, eos=frozenset({EOS_ID}), room=100, codec=codec)
    # The first b and the end of the text come too early; the second b does not.
    assert [stop_rule.push(token) for token in (ord("b"), EOS_ID)] == [None, None]
    assert stop_rule.push(ord("a")) is None
    assert stop_rule.push(ord("b")) == Finish(reason="stop", matched="b")


def test_a_stop_string_that_was_passed_over_does_not_come_back(codec: TextCodec) -> None:
    params = SamplingParams(stop=("b", "a long one"), max_new_tokens=20, min_new_tokens=2)
    stop_rule = StopRule(params, eos=frozenset(), room=100, codec=codec)
    assert push_text(stop_rule, codec, "bxyz") == [None] * 4
    assert stop_rule.push(ord("b")) == Finish(reason="stop", matched="b")


def test_a_special_token_is_text_where_it_is_shown(codec: TextCodec) -> None:
    spelled = codec.decode([EOS_ID], skip_special_tokens=False)
    shown, hidden = (
        StopRule(
            SamplingParams(stop=(spelled,), ignore_eos=True, skip_special_tokens=skips),
            eos=frozenset({EOS_ID}),
            room=100,
            codec=codec,
        )
        for skips in (False, True)
    )
    assert shown.push(EOS_ID) == Finish(reason="stop", matched=spelled)
    assert hidden.push(EOS_ID) is None


def test_a_request_for_no_token_wants_none(codec: TextCodec) -> None:
    for count in (0, 1):
        params = SamplingParams(max_new_tokens=count)
        stop_rule = StopRule(params, eos=frozenset(), room=100, codec=codec)
        assert stop_rule.wants_none is (count == 0)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    assert load_codec(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text('{"version": 1}')
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        load_codec(tmp_path)
