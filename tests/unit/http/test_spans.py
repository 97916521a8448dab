from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hotswap.http.spans import Spans, VersionSpan, spans_of
from hotswap.types import WeightStamp

stamps = st.lists(
    st.integers(0, 3).map(lambda epoch: WeightStamp(version=f"v{epoch % 2}", epoch=epoch)),
    max_size=40,
)


def test_no_token_no_span() -> None:
    assert spans_of([]) == []


def test_tokens_of_one_epoch_share_a_span() -> None:
    old, new = WeightStamp(version="a", epoch=1), WeightStamp(version="b", epoch=2)

    assert spans_of([old, old, new]) == [
        VersionSpan(version="a", weight_epoch=1, start=0, end=2),
        VersionSpan(version="b", weight_epoch=2, start=2, end=3),
    ]


def test_another_label_of_the_same_epoch_is_another_span() -> None:
    old, new = WeightStamp(version="a", epoch=1), WeightStamp(version="b", epoch=1)

    assert spans_of([old, new, new]) == [
        VersionSpan(version="a", weight_epoch=1, start=0, end=1),
        VersionSpan(version="b", weight_epoch=1, start=1, end=3),
    ]


def test_a_label_that_is_used_again_is_another_span() -> None:
    first, second = WeightStamp(version="a", epoch=1), WeightStamp(version="a", epoch=2)

    assert [span.weight_epoch for span in spans_of([first, second])] == [1, 2]


@given(stamps)
def test_spans_name_the_weights_of_every_token(tokens: list[WeightStamp]) -> None:
    named = [
        (span.version, span.weight_epoch)
        for span in spans_of(tokens)
        for _ in range(span.start, span.end)
    ]

    assert named == [(stamp.version, stamp.epoch) for stamp in tokens]


@given(stamps)
def test_spans_touch_and_neighbours_differ(tokens: list[WeightStamp]) -> None:
    spans = spans_of(tokens)

    assert [span.start for span in spans] == [0, *[span.end for span in spans[:-1]]][: len(spans)]
    assert all(span.end > span.start for span in spans)
    for left, right in pairwise(spans):
        assert left.weight_epoch != right.weight_epoch


def test_repr() -> None:
    spans = Spans()
    spans.add(WeightStamp())

    assert repr(spans) == "<Spans 1 over 1 tokens>"
