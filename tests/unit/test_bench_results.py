"""The benchmarks' verdicts: a missed target is never a pass, whatever it is printed as."""

from __future__ import annotations

import json

import pytest

from contrib.bench.results import (
    Measure,
    Report,
    best,
    quantile,
    ratio_of_bests,
    spread,
    table,
)


def measure(value: float, limit: float | None = None) -> Measure:
    return Measure(name="paused / copy_", value=value, unit="x", limit=limit)


@pytest.mark.parametrize(
    ("value", "limit", "verdict"),
    [(1.3, 1.3, "PASS"), (1.3001, 1.3, "FAIL"), (9.0, None, ""), (float("nan"), 1.3, "FAIL")],
)
def test_a_limit_is_kept_or_it_is_not(value: float, limit: float | None, verdict: str) -> None:
    one = measure(value, limit)
    assert one.verdict == verdict
    assert one.passed is (verdict != "FAIL")
    assert Report(name="updates", configuration={}, measures=[one]).passed is one.passed


def test_one_missed_target_fails_its_report() -> None:
    report = Report(
        name="updates", configuration={}, measures=[measure(1.0, 1.3), measure(2.0, 1.3)]
    )
    assert report.passed is False
    shown = json.loads(json.dumps(report.as_json()))
    assert shown["passed"] is False
    assert [one["verdict"] for one in shown["measures"]] == ["PASS", "FAIL"]


def test_the_table_shows_every_figure_its_limit_and_its_verdict() -> None:
    reports = [
        Report(name="updates", configuration={}, measures=[measure(1.234, 1.3)]),
        Report(
            name="memory",
            configuration={},
            measures=[Measure(name="threads", value=7.0, limit=6.0, note="idle")],
        ),
    ]
    head, rule, first, second = table(reports).splitlines()
    assert head.split() == ["benchmark", "measure", "value", "limit", "note"]
    assert set(rule) == {"-"}
    assert " ".join(first.split()) == "updates paused / copy_ 1.23 x <= 1.30 x PASS"
    assert " ".join(second.split()) == "memory threads 7 <= 6 FAIL idle"


def test_quantiles_are_values_that_occurred() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile(range(100), 0.99) == 99
    assert quantile([5.0], 0.0) == 5.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_the_spread_is_how_far_the_median_is_above_the_best() -> None:
    assert spread([100.0, 150.0, 900.0]) == pytest.approx(0.5)
    assert spread([100.0]) == 0.0


def test_the_best_of_each_side_are_compared_and_the_rounds_are_shown() -> None:
    ours, theirs = [200.0, 150.0, 900.0], [100.0, 50.0, 300.0]
    shown = best("push", ours)
    assert (shown.value, shown.unit, shown.limit) == (150.0, "ms", None)
    assert shown.note == "best of 3, spread 33%"
    compared = ratio_of_bests("push / copy_", ours, theirs, limit=2.5)
    assert (compared.value, compared.limit, compared.passed) == (3.0, 2.5, False)
    assert compared.note == "rounds 2.00 to 3.00"
    with pytest.raises(ValueError, match="shorter"):
        ratio_of_bests("push / copy_", ours, theirs[:2], limit=2.5)
