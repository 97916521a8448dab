"""Several ranks publish one version: files without gaps, each name once, all or nothing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from hotswap.stream import Published, Publisher, StreamError, published_versions
from hotswap.stream.aggregate import DIRECTORY
from hotswap.stream.disk import LocalDisk
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.publisher_ranks import Alone, Ranks, agreed
from tests.unit.stream.faulty_disk import failing
from tests.unit.stream.streams import contents_of
from tests.unit.stream.thread_ranks import together
from tests.unit.stream.trained import State, after_step, bytes_in, first_state, pulled, write_base

WORLD = 3


def parts(state: State) -> list[State]:
    """Rank 1 has nothing of its own; the embedding is on ranks 0 and 2."""
    names = sorted(state)
    own = [set(names[:3]), set[str](), set(names[3:])]
    for rank in (0, 2):
        own[rank].add("embed.weight")
    return [{name: state[name] for name in names if name in mine} for mine in own]


def published_by_all(
    source: Path,
    states: list[State],
    *,
    base: Path | None = None,
    anchor_every: int = 0,
    aggregate_every: int = 0,
    keep: int | None = None,
) -> list[Published | BaseException]:
    """Publish ``states`` in turn by every rank, with one publisher; the last outcome by rank."""

    def work(ranks: Ranks) -> Published:
        with Publisher(
            source,
            run="a",
            base_dir=base,
            ranks=ranks,
            threads=1,
            anchor_every=anchor_every,
            aggregate_every=aggregate_every,
            keep=keep,
        ) as publisher:
            done = [publisher.publish(parts(state)[ranks.rank]) for state in states]
        return done[-1]

    return together(WORLD, work)


def trained(steps: int) -> list[State]:
    states = [first_state()]
    for step in range(1, steps + 1):
        states.append(after_step(states[-1], step))
    return states


def test_files_are_numbered_without_gaps_and_names_come_once(tmp_path: Path) -> None:
    states = trained(2)
    base, source = write_base(tmp_path / "base", states[0]), tmp_path / "source"
    outcomes = published_by_all(source, states[1:], base=base)
    assert [isinstance(one, Published) and one.version for one in outcomes] == [2, 2, 2]
    for version in (1, 2):
        files = ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors", INDEX]
        assert sorted(os.listdir(directory_of(source, version))) == files
        index = json.loads((directory_of(source, version) / INDEX).read_text())
        changed = bytes_in(states[version]).items() - bytes_in(states[version - 1]).items()
        assert set(index["weight_map"]) == {name for name, _ in changed}
        assert index["weight_map"].get("embed.weight") in (files[0], None)
    assert pulled(tmp_path, source, 2, base=base) == bytes_in(states[2])


def test_anchors_aggregates_and_restarts(tmp_path: Path) -> None:
    states = trained(5)
    base, source = write_base(tmp_path / "base", states[0]), tmp_path / "source"
    for part in (states[1:3], states[3:]):
        outcomes = published_by_all(
            source, part, base=base, anchor_every=4, aggregate_every=3, keep=2
        )
        assert all(isinstance(one, Published) for one in outcomes), outcomes
    assert published_versions(source) == (4, 5)
    assert contents_of(directory_of(source, 4)) == bytes_in(states[4])
    assert json.loads((source / DIRECTORY / INDEX).read_text())["metadata"]["version"] == "000003"
    assert pulled(tmp_path, source, 5, base=base) == bytes_in(states[5])


def test_without_a_base_every_rank_writes_its_part(tmp_path: Path) -> None:
    states = trained(1)
    outcomes = published_by_all(tmp_path / "source", states)
    assert all(isinstance(one, Published) for one in outcomes), outcomes
    assert contents_of(directory_of(tmp_path / "source", 1)) == bytes_in(states[0])


def test_a_name_that_differs_between_ranks_is_an_error_on_all(tmp_path: Path) -> None:
    state = first_state()
    base, source = write_base(tmp_path / "base", state), tmp_path / "source"

    def work(ranks: Ranks) -> None:
        with Publisher(source, run="a", base_dir=base, ranks=ranks, threads=1) as publisher:
            mine = parts(state)[ranks.rank]
            if ranks.rank == 2:
                mine["embed.weight"] = mine["embed.weight"] + 1
            publisher.publish(mine)

    outcomes = together(WORLD, work)
    for outcome in outcomes:
        assert isinstance(outcome, StreamError)
        assert "'embed.weight' is not the same on rank 0" in str(outcome)
        assert "and on rank 2" in str(outcome)
    assert published_versions(source) == ()
    assert not list(source.glob(".weight_v*"))


def test_what_fails_on_one_rank_fails_on_all_and_the_next_one_goes_on(tmp_path: Path) -> None:
    states = trained(2)
    base, source = write_base(tmp_path / "base", states[0]), tmp_path / "source"

    def work(ranks: Ranks) -> tuple[BaseException | None, int]:
        disk = failing(0, errno.ENOSPC) if ranks.rank == 2 else LocalDisk()
        error: BaseException | None = None
        with Publisher(
            source, run="a", base_dir=base, ranks=ranks, threads=1, disk=disk
        ) as publisher:
            try:
                publisher.publish(parts(states[1])[ranks.rank])
            except (OSError, StreamError) as raised:
                error = raised
            seen = len(list(source.glob("*weight_v*")))
            ranks.gather({})
            publisher.publish(parts(states[2])[ranks.rank])
        return error, seen

    outcomes = [one for one in together(WORLD, work) if not isinstance(one, BaseException)]
    assert len(outcomes) == WORLD
    assert isinstance(outcomes[2][0], OSError)
    for error, _ in outcomes[:2]:
        assert isinstance(error, StreamError)
        assert "rank 2 could not publish: OSError: [Errno 28]" in str(error)
    assert outcomes[0][1] == 0
    assert published_versions(source) == (1,)
    assert pulled(tmp_path, source, 1, base=base) == bytes_in(states[2])


def test_a_source_of_another_run_is_an_error_on_all(tmp_path: Path) -> None:
    with Publisher(tmp_path, run="b"):
        pass
    outcomes = published_by_all(tmp_path, [first_state()])
    assert [type(one) for one in outcomes] == [StreamError] * WORLD
    assert "rank 0 could not publish: StreamError" in str(outcomes[1])


def test_a_tensor_that_moves_to_another_rank(tmp_path: Path) -> None:
    states = trained(3)
    base, source = write_base(tmp_path / "base", states[0]), tmp_path / "source"

    def work(ranks: Ranks) -> None:
        with Publisher(source, run="a", base_dir=base, ranks=ranks, threads=1) as publisher:
            for turn, state in enumerate(states[1:]):
                publisher.publish(parts(state)[(ranks.rank + turn) % WORLD])

    assert together(WORLD, work) == [None] * WORLD
    assert pulled(tmp_path, source, 3, base=base) == bytes_in(states[3])


def test_alone_hears_itself() -> None:
    assert agreed(Alone(), lambda: 3, told=lambda found: {"found": found}) == (3, [{"found": 3}])
    assert repr(Alone()) == "<Alone>"
