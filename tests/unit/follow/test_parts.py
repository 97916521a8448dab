"""What a follower is made of: waits, turns, what to pull next, what is published."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from hotswap.follow.backoff import Backoff, jittered
from hotswap.follow.mark import VersionMark
from hotswap.follow.seen import Behind, Seen, SourceWatch
from hotswap.follow.target import next_target
from hotswap.follow.turns import Turns
from hotswap.stream import SourceNotReady, SourceUnusable, directory_of
from hotswap.stream.objects import Objects
from tests.unit.follow.following import damage
from tests.unit.stream.streams import Stream

HELD = VersionMark(version=3, index_digest="three")


def test_waits_are_doubled_up_to_a_bound() -> None:
    backoff = Backoff(first_s=1, longest_s=5, draw=lambda: 0.0)
    assert [backoff.failed() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.failures = 5000
    assert backoff.failed() == 5
    backoff.succeeded()
    assert (backoff.failed(), repr(backoff)) == (1, "<Backoff 1 failures>")


def test_servers_do_not_stay_together() -> None:
    assert jittered(8, draw=lambda: 0.5) == 9
    assert 8 <= jittered(8) <= 10
    assert Backoff(first_s=1, draw=lambda: 1.0).failed() == 1.25


async def test_turns_are_waited_for_one_by_one() -> None:
    turns = Turns()
    with anyio.fail_after(10):
        await turns.until(0)
        with turns.one():
            assert repr(turns) == "<Turns 0 ended, 1 running>"
        await turns.until(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.until, 3)
            await anyio.wait_all_tasks_blocked()
            for _ in range(2):
                with turns.one():
                    pass
    assert (turns.begun, turns.ended) == (3, 3)


def seen(whole: Mapping[int, int], *others: int) -> Seen:
    return Seen(whole=whole, listed=frozenset({*whole, *others}))


@pytest.mark.parametrize(
    ("whole", "held", "options", "target"),
    [
        # Nothing newer.
        ({}, HELD, {}, None),
        ({2: 1, 3: 1}, HELD, {}, None),
        # The newest, or the newest that has not just failed.
        ({3: 1, 4: 1, 6: 1}, HELD, {}, 6),
        ({3: 1, 4: 1, 6: 1}, HELD, {"failed": {6}}, 4),
        ({4: 1}, HELD, {"failed": {4}}, None),
        ({1: 1, 2: 1}, None, {}, 2),
        # The base alone, where nothing is and nothing is published.
        ({}, None, {"is_untouched": True}, 0),
        ({}, None, {"is_untouched": True, "failed": {0}}, None),
        ({1: 1}, None, {"is_untouched": True}, 1),
        ({}, None, {}, None),
        # Somebody waits.
        ({4: 1}, HELD, {"wish": 2}, 2),
        ({4: 1}, HELD, {"wish": 3}, None),
        ({4: 1}, HELD, {"wish": 9, "failed": {9}}, 4),
        # Of another run everything is new.
        ({1: 1, 2: 1}, HELD, {"is_other_run": True}, 2),
        ({3: 1}, HELD, {"is_other_run": True}, 3),
    ],
)
def test_what_to_pull_next(
    whole: Mapping[int, int],
    held: VersionMark | None,
    options: Mapping[str, Any],
    target: int | None,
) -> None:
    assert next_target(seen(whole), held, **options) == target


def test_what_is_not_whole_seeds_no_base() -> None:
    assert next_target(seen({}, 1), None, is_untouched=True) is None


def test_how_far_something_is_behind() -> None:
    look = Seen(whole={3: 10, 4: 20, 6: 30}, first_seen={3: 1.0, 4: 3.0, 6: 2.0})
    assert look.newest == 6
    assert look.behind(3) == Behind(versions=2, size_bytes=50, since=2.0)
    assert look.behind(6) == Behind()


def test_a_source_is_looked_at_again_and_again(tmp_path: Path) -> None:
    stream, now = Stream(tmp_path), [1.0]
    watch = SourceWatch(stream.source, clock=lambda: now[0])
    assert watch.look() == Seen()
    stream.add("xor")
    stream.add("xor")
    directory_of(stream.source, 3).mkdir()
    look = watch.look()
    assert (list(look.whole), look.newest, look.listed) == ([1, 2], 2, frozenset({1, 2, 3}))
    assert "version 3" in look.troubles[3]
    now[0] = 2.0
    directory_of(stream.source, 3).rmdir()
    stream.add("full")
    later = watch.look()
    assert later.whole == {**look.whole, 3: later.whole[3]}
    assert later.first_seen == {1: 1.0, 2: 1.0, 3: 2.0}
    # What is behind one's own is not looked into, but for one that is whole.
    assert list(watch.look(above=3).whole) == [3]
    assert list(watch.look(above=1).whole) == [2, 3]
    shutil.rmtree(directory_of(stream.source, 3))
    assert list(watch.look(above=3, told=[7]).whole) == [2]
    shutil.rmtree(stream.source)
    with pytest.raises(SourceNotReady, match="cannot be listed"):
        watch.look()


def test_a_source_that_has_become_none_says_so(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    watch = SourceWatch(stream.source)
    assert watch.look() == Seen()
    (stream.source / "model.safetensors").write_bytes(b"")
    with pytest.raises(SourceUnusable, match="is a checkpoint and has no published version"):
        watch.look()
    shutil.rmtree(stream.source)
    stream.source.write_text("")
    with pytest.raises(SourceUnusable, match="is a file, wanted a directory"):
        watch.look()


def test_what_looks_whole_is_for_a_pull_to_find_out(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    damage(stream, 1)
    assert SourceWatch(stream.source).look().newest == 1


def test_an_object_store_that_lists_late(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor", "xor")
    fs = pytest.importorskip("fsspec").filesystem("memory", skip_instance_cache=True)
    place = Objects.at("memory://follow-parts/run", fs=fs)
    for number in (1, 2):
        for file in directory_of(stream.source, number).iterdir():
            fs.pipe_file(f"/follow-parts/run/weight_v00000{number}/{file.name}", file.read_bytes())
    try:
        assert SourceWatch(place).look().newest == 2
        listed = fs.find
        fs.find = lambda path, **options: [p for p in listed(path, **options) if "v000001" in p]
        assert SourceWatch(place).look().newest == 1
        assert SourceWatch(place).look(told=[2, 9]).newest == 2
    finally:
        del fs.find
        fs.rm("/follow-parts", recursive=True)
