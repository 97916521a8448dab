"""A trainer gives a tied tensor under every name; the stream has those that it began with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hotswap.stream import Publisher, StreamError
from hotswap.stream.publisher_ties import without_ties
from tests.unit.stream.trained import State, Trainer, bytes_in, pulled


def tied(state: State) -> State:
    """``state`` with its embedding under a second name, as a model's state has it."""
    return state | {"head.weight": state["embed.weight"]}


@pytest.mark.parametrize("begins", ["restart", "goes on", "snapshot"])
def test_a_name_that_the_stream_lacks_is_left_out(begins: str, trainer: Trainer) -> None:
    publisher = Publisher(trainer.source, run="a", base_dir=trainer.base, threads=1)
    if begins == "snapshot":
        publisher.start_from(tied(trainer.states[0]))
    for step in (1, 2):
        state = {name: value.clone() for name, value in trainer.states[-1].items()}
        state["embed.weight"][0] += step
        publisher.publish(tied(state))
        trainer.states.append(state)
        trainer.check()
        if begins == "restart":
            publisher.close()
            publisher = Publisher(trainer.source, run="a", base_dir=trainer.base, threads=1)
    publisher.close()


def test_the_other_name_may_be_the_one_that_is_known(trainer: Trainer) -> None:
    state = trainer.states[0]
    given = {"a.copy": state["embed.weight"], **state}
    with Publisher(trainer.source, run="a", base_dir=trainer.base, threads=1) as publisher:
        assert publisher.publish(given).changed == 0
    trainer.states.append(state)
    trainer.check()


def test_a_stream_that_has_both_gets_both(tmp_path: Path) -> None:
    state = tied({"embed.weight": torch.arange(64.0), "norm.weight": torch.ones(8)})
    source = tmp_path / "source"
    with Publisher(source, run="a", threads=1) as publisher:
        assert publisher.publish(state).full
        state["embed.weight"][3] = 7.0
        assert publisher.publish(state).changed == 2
    assert pulled(tmp_path, source, 2, base=source / "weight_v000001") == bytes_in(state)


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a copy": torch.Tensor.clone,
    "a part": lambda weight: weight[:3],
    "of another dtype": lambda weight: weight.view(torch.int16),
    "turned": lambda weight: weight.T,
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_only_looks_like_it_is_refused(other: str, trainer: Trainer) -> None:
    state = trainer.states[0]
    given = state | {"head.weight": OTHERS[other](state["embed.weight"])}
    with Publisher(trainer.source, run="a", base_dir=trainer.base, threads=1) as publisher:
        with pytest.raises(StreamError, match=r"head\.weight"):
            publisher.publish(given)
        assert publisher.version == 0


def test_an_iterable_is_taken_as_it_comes(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base, threads=1) as publisher:
        assert publisher.publish(iter(trainer.states[0].items())).changed == 0
        with pytest.raises(StreamError, match=r"head\.weight"):
            publisher.publish(iter(tied(trainer.states[0]).items()))


def test_what_has_no_memory_is_tied_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (torch.ones(3, device="meta"), torch.ones(3).to_sparse(), torch.ones(0)):
        given = {"a": value, "b": value}
        assert without_ties(given, lambda: ["a"]) is given

    def nowhere(_: torch.Tensor) -> int:
        raise RuntimeError("there is no storage")  # as of one that stands for parts elsewhere

    whole = torch.ones(3)
    assert without_ties({"a": whole, "b": whole}, lambda: ["a"]) == {"a": whole}
    monkeypatch.setattr(torch.Tensor, "data_ptr", nowhere)
    assert without_ties({"a": whole, "b": whole}, lambda: ["a"]) == {"a": whole, "b": whole}
