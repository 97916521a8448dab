"""The picture of an update: drawn from its figures alone, and the one in the docs is of them."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch

from contrib.bench import served
from contrib.bench.bars import Bar, picture
from contrib.bench.optimiser_steps import changed_share, spread_within_rounding

COLOURS = {"one": "#111", "two": "#222"}
SVG = "{http://www.w3.org/2000/svg}"


def widths(svg: str) -> list[float]:
    """Of the phases that are drawn, without the legend."""
    rects = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [float(rect.get("width", 0)) for rect in rects if rect.find(f"{SVG}title") is not None]


def test_phases_are_as_wide_as_they_are_long() -> None:
    bars = [
        Bar(label="a", note="<&>", phases={"one": 0.2, "two": 0.1}),
        Bar(label="b", note="", phases={"one": 0.4, "two": 0.0}),
    ]
    svg = picture("x < y", bars, colours=COLOURS)
    first, second, third, least = widths(svg)
    assert first == pytest.approx(2 * second, abs=0.2)
    assert third == pytest.approx(2 * first, abs=0.2)
    assert least > 0
    assert picture("x < y", bars, colours=COLOURS) == svg
    with pytest.raises(ValueError, match="no bars"):
        picture("none", [], colours=COLOURS)


def test_the_picture_in_the_documentation_is_of_the_figures_beside_it() -> None:
    figures = json.loads(served.FIGURES.read_text())
    assert served.PICTURE.read_text() == served.draw(figures)
    assert served.PICTURE.name in (served.PICTURE.parent / "performance.md").read_text()


def test_spread_weights_round_to_what_they_were() -> None:
    weights = torch.cat([torch.randn(5000), torch.tensor([0.0, -0.0, 1e-39])]).bfloat16()
    spread = spread_within_rounding(weights, torch.Generator().manual_seed(0))
    assert torch.equal(spread.bfloat16(), weights)
    assert (spread != weights.float()).float().mean() > 0.99


def test_how_much_differs_is_counted_in_elements() -> None:
    old = {"w": torch.zeros(8, dtype=torch.uint8).numpy()}
    new = {"w": old["w"].copy()}
    new["w"][[2, 3]] = 1
    assert changed_share(old, new) == 0.25
