"""``Publisher``: what it refuses, in words, and that a refusal leaves nothing behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.stream import (
    Publisher,
    StreamError,
    UnknownEncoding,
    published_versions,
)
from hotswap.stream.aggregate import DIRECTORY
from hotswap.stream.layout import directory_of
from hotswap.stream.publisher_tensors import host_tensors
from tests.unit.stream.streams import Stream
from tests.unit.stream.trained import (
    Trainer,
    after_step,
    write_base,
)


def test_an_aggregate_needs_the_base(trainer: Trainer) -> None:
    with pytest.raises(StreamError, match="give base_dir"):
        Publisher(trainer.source, run="a", aggregate_every=2)


def test_an_aggregate_cannot_be_about_a_tensor_called_as_its_stamp(trainer: Trainer) -> None:
    more = trainer.states[0] | {"version": torch.zeros(4)}
    base = write_base(trainer.root / "stamped", more)
    with pytest.raises(StreamError, match=r"a tensor 'version', where .* rename it"):
        Publisher(trainer.source, run="a", base_dir=base, aggregate_every=2)
    assert not trainer.source.exists()
    with Publisher(trainer.source, run="a", base_dir=base) as publisher:
        publisher.start_from(more)
        publisher.publish(more | {"version": torch.ones(4)})
    assert list(published_versions(trainer.source)) == [1]


def test_a_run_has_a_name(trainer: Trainer) -> None:
    with pytest.raises(StreamError, match="the name of the run is empty"):
        Publisher(trainer.source, run="")
    assert not trainer.source.exists()


NOT_IN_MEMORY: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "meta": (lambda: torch.zeros(4, device="meta"), "torch.strided on meta"),
    "sparse": (lambda: sparse(torch.sparse_coo), "torch.sparse_coo on cpu"),
    "compressed": (lambda: sparse(torch.sparse_csr), "torch.sparse_csr on cpu"),
}


def sparse(layout: torch.layout) -> torch.Tensor:
    tensor: torch.Tensor = torch.eye(2).to_sparse(layout=layout)
    return tensor


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", NOT_IN_MEMORY)
def test_a_tensor_whose_elements_are_not_there_is_named(kind: str, trainer: Trainer) -> None:
    make, seen = NOT_IN_MEMORY[kind]
    with Publisher(trainer.source, run="a") as publisher:
        with pytest.raises(StreamError, match=f"tensor 'w' is {seen}, wanted"):
            publisher.publish({"w": make()})
        assert publisher.publish({"w": torch.ones(4)}).version == 1


def test_a_conjugate_is_published_as_what_it_is(trainer: Trainer) -> None:
    value = torch.tensor([1 + 2j, 3 - 4j]).conj()
    (tensor,) = host_tensors({"w": value})
    assert tensor.content.tobytes() == value.resolve_conj().numpy().tobytes()


def test_an_aggregate_of_what_the_base_lacks_is_refused_in_words(trainer: Trainer) -> None:
    more = trainer.states[0] | {"head.weight": torch.zeros(4)}
    base, heard = write_base(trainer.root / "whole", more), list[str | None]()

    async def note(directory: str, version: str | None) -> None:
        heard.append(version)

    with Publisher(
        trainer.source, run="a", base_dir=base, aggregate_every=1, keep=1, post_write=[note]
    ) as publisher:
        publisher.start_from(more)
        shutil.rmtree(base)
        write_base(base, trainer.states[0])
        with pytest.raises(StreamError, match=r"tensor 'head.weight' \(1 in all\) is not in"):
            publisher.publish(more)
    assert not (trainer.source / DIRECTORY).exists()
    # The version is there all the same, and whoever waits for it hears of it.
    assert (publisher.version, heard) == (1, ["000001"])


def test_a_snapshot_with_more_than_the_base_is_refused(trainer: Trainer) -> None:
    """Readers begin with the base: no delta would make them the tensor."""
    more = trainer.states[0] | {"head.weight": torch.zeros(4)}
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        with pytest.raises(StreamError, match=r"tensor 'head.weight' \(1 in all\) is not in"):
            publisher.start_from(more)
        trainer.step(publisher)
    trainer.check()


def test_after_its_end_it_says_what_to_do(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        trainer.step(publisher)
    with pytest.raises(StreamError, match=r"is closed, .*; make a new one, which goes on where"):
        publisher.publish(trainer.states[0])
    with Publisher(trainer.root / "other", run="a") as another:
        another.close()
        with pytest.raises(StreamError, match="is closed"):
            another.start_from(trainer.states[0])


def test_another_run_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        trainer.step(publisher)
        with pytest.raises(StreamError, match="another publisher is at work there"):
            Publisher(trainer.source, run="a", base_dir=trainer.base)
    with pytest.raises(StreamError, match="the run 'a', up to version 1; give that name"):
        Publisher(trainer.source, run="b", base_dir=trainer.base)
    other = write_base(
        tmp_path / "other", after_step(trainer.states[0], 1) | {"more": torch.ones(1)}
    )
    with pytest.raises(StreamError, match="began on another base"):
        Publisher(trainer.source, run="a", base_dir=other)
    stream = Stream(tmp_path / "slime", "xor")
    with pytest.raises(StreamError, match="holds version 1, and nothing says which run"):
        Publisher(stream.source, run="a", base_dir=stream.base)
    (trainer.source / ".publisher" / "run.json").write_text("{")
    with pytest.raises(StreamError, match=r"run.json: cannot be read"):
        Publisher(trainer.source, run="a")
    (trainer.source / ".publisher" / "run.json").write_text('{"name": "a", "format": 7}')
    with pytest.raises(StreamError, match="its run is of format 7, wanted 1"):
        Publisher(trainer.source, run="a")
    with pytest.raises(StreamError, match="the base checkpoint cannot be read"):
        Publisher(tmp_path / "new", run="a", base_dir=tmp_path / "nowhere")
    with pytest.raises(UnknownEncoding, match="'zip'"):
        Publisher(tmp_path / "new", run="a", encoding="zip")


def test_a_version_is_never_written_over(trainer: Trainer) -> None:
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        trainer.step(publisher)
        intruder = directory_of(trainer.source, 2)
        intruder.mkdir()
        with pytest.raises(StreamError, match="is there already, and a version is never"):
            publisher.publish(trainer.states[-1])
        assert os.listdir(intruder) == []
        intruder.rmdir()
        trainer.step(publisher)
    trainer.check()


def test_what_is_another_model_is_refused_and_leaves_nothing(trainer: Trainer) -> None:
    state = trainer.states[0]
    no_tensors: Any = {"step": [1]}
    with Publisher(trainer.source, run="a", base_dir=trainer.base) as publisher:
        with pytest.raises(StreamError, match="has no tensor 'more'"):
            publisher.publish({**state, "more": torch.ones(1)})
        with pytest.raises(StreamError, match="'more' is not in what was published last"):
            publisher.publish(iter([("more", torch.ones(1))]))
        with pytest.raises(StreamError, match=r"'step' is F32 \[1\], wanted I64 \[\]"):
            publisher.publish(state | {"step": torch.ones(1)})
        with pytest.raises(StreamError, match="'step' comes twice"):
            publisher.publish(iter([("step", state["step"])] * 2))
        with pytest.raises(StreamError, match=r"complex128, wanted a dtype of safetensors"):
            publisher.publish({"step": torch.zeros(2, dtype=torch.complex128)})
        with pytest.raises(TypeError, match=r"'step' is a list, wanted a torch\.Tensor"):
            publisher.publish(no_tensors)
        assert published_versions(trainer.source) == ()
        trainer.step(publisher)
    trainer.check()
