"""Publishing to an object store: whole or not there, whoever else publishes, whenever it ends."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hotswap.stream import (
    Publisher,
    SourceNotReady,
    SourceUnusable,
    StreamError,
    prune,
    published_versions,
    pull,
    verify_source,
)
from hotswap.stream.layout import INDEX, directory_of
from hotswap.stream.objects import Objects
from hotswap.stream.publisher_ranks import Ranks
from tests.unit.stream.faulty_store import URL, FaultyStore, objects
from tests.unit.stream.streams import contents_of
from tests.unit.stream.thread_ranks import together
from tests.unit.stream.trained import State, after_step, bytes_in, first_state, write_base


class Shop:
    """A base, a store, and the state that each version has to be."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fs = FaultyStore()
        self.place: Objects = objects(self.fs)
        self.states: list[State] = [first_state(size=140)]
        self.base = write_base(root / "base", self.states[0])

    def state(self, version: int) -> State:
        """What training has after ``version`` steps."""
        while len(self.states) <= version:
            self.states.append(after_step(self.states[-1], len(self.states)))
        return self.states[version]

    def publisher(self, *, run: str = "a", ranks: Ranks | None = None) -> Publisher:
        """With full versions, aggregates and pruning."""
        return Publisher(
            objects(self.fs),
            run=run,
            base_dir=self.base,
            threads=1,
            anchor_every=3,
            aggregate_every=2,
            keep=3,
            ranks=ranks,
        )

    def publish(self, publisher: Publisher) -> str:
        """The next version; where it is."""
        return str(publisher.publish(self.state(publisher.version + 1)).directory)

    def check(self, *names: str) -> int:
        """Readers at the newest version have its bytes; which one that is."""
        newest = max(published_versions(self.place), default=0)
        for name in names or ("local",):
            local = self.root / name
            if newest:
                pull(local, self.place, newest, base_dir=self.base, threads=1)
                assert contents_of(local) == bytes_in(self.state(newest))
        return newest

    def stored(self) -> set[str]:
        """Every object."""
        return set(self.place.names())

    def named(self) -> set[str]:
        """What indexes and the publisher name: everything that may be there."""
        names = {".publisher/run.json"}
        for directory in [f"weight_v{n:06d}" for n in published_versions(self.place)] + [
            "aggregate"
        ]:
            text = (self.place / directory / INDEX).content()
            if text is not None:
                files = set(json.loads(text)["weight_map"].values())
                names |= {f"{directory}/{file}" for file in (INDEX, "config.json", *files)}
        return names


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_versions_anchors_aggregates_and_a_restart(shop: Shop) -> None:
    with shop.publisher() as publisher:
        assert repr(publisher) == f"<Publisher {URL} run 'a' at version 0>"
        for version in range(1, 5):
            assert shop.publish(publisher) == f"{URL}/weight_v{version:06d}"
            assert shop.check() == version
    with shop.publisher() as publisher:
        assert publisher.version == 4
        for version in range(5, 9):
            shop.publish(publisher)
            assert shop.check("local", f"late-{version}") == version
    assert published_versions(shop.place) == (6, 7, 8)
    assert shop.stored() <= shop.named()
    assert verify_source(shop.place, base_dir=shop.base).faults == ()
    # The index of a version is the last of it that is written, and the first that goes.
    writes = [path for request, path in shop.fs.requests if request == "write"]
    removed = [path for request, path in shop.fs.requests if request == "remove"]
    for version in range(1, 9):
        mine = [path for path in writes if path.startswith(f"weight_v{version:06d}/")]
        assert mine[-1].endswith(INDEX)
        assert len(mine) >= 2
    for version in range(1, 6):
        gone = [path for path in removed if path.startswith(f"weight_v{version:06d}/")]
        assert gone[0].endswith(INDEX)
    with pytest.raises(StreamError, match="is the stream of the run 'a'"):
        shop.publisher(run="b")


def test_hooks_hear_of_the_url(shop: Shop) -> None:
    heard = list[tuple[str, str | None]]()

    async def hook(directory: str, version: str | None) -> None:
        heard.append((directory, version))
        assert shop.check() == 1

    with Publisher(
        shop.place, run="a", base_dir=shop.base, threads=1, post_write=[hook]
    ) as publisher:
        shop.publish(publisher)
    assert heard == [(f"{URL}/weight_v000001", "000001")]


def test_another_source_is_not_taken_over(shop: Shop) -> None:
    with shop.publisher() as publisher:
        shop.publish(publisher)
    run = shop.place / ".publisher" / "run.json"
    run.store.put(run.url, b"[]")
    with pytest.raises(StreamError, match="cannot be read"):
        shop.publisher()
    run.store.delete(run.url)
    with pytest.raises(StreamError, match="nothing says which run wrote it"):
        shop.publisher()


def test_the_run_belongs_to_who_wrote_it_first(shop: Shop) -> None:
    def meanwhile(request: str, path: str) -> None:
        if request == "write" and path.endswith("run.json"):
            shop.fs.before = lambda request, path: None
            shop.publisher(run="b").close()

    shop.fs.before = meanwhile
    with pytest.raises(StreamError, match="is the stream of the run 'b'"):
        shop.publisher(run="a")


def test_a_second_publisher_never_changes_what_the_first_published(shop: Shop) -> None:
    with shop.publisher() as first, shop.publisher() as second:
        shop.publish(first)
        with pytest.raises(StreamError, match="never written over; see who else publishes"):
            shop.publish(second)
        assert shop.check() == 1
        # Both write the files of version 2, and one of them the index.
        meanwhile = list[str]()

        def overtaken(request: str, path: str) -> None:
            if request == "write" and path == f"weight_v000002/{INDEX}" and not meanwhile:
                meanwhile.append(path)
                shop.publish(first)

        with shop.publisher() as third:
            shop.fs.before = overtaken
            with pytest.raises(StreamError, match="is there already"):
                third.publish(shop.state(5))
            assert meanwhile
            assert third.version == 1
            with pytest.raises(StreamError, match="is there already"):
                third.publish(shop.state(5))
        assert shop.check("local", "late") == 2
        assert shop.stored() <= shop.named()
        shop.publish(first)
        assert shop.check() == 3


def test_an_answer_that_was_lost_is_no_second_publisher(shop: Shop) -> None:
    def lost(request: str, path: str) -> None:
        if request == "write" and path.endswith(f"1/{INDEX}"):
            shop.fs.after = lambda request, path: None
            raise TimeoutError("read timeout")

    with shop.publisher() as publisher:
        shop.fs.after = lost
        shop.publish(publisher)
        shop.publish(publisher)
    assert shop.check("local", "late") == 2


@pytest.mark.parametrize("arrived", [True, False])
def test_an_index_whose_fate_is_unknown_keeps_its_files(shop: Shop, arrived: bool) -> None:
    """The store is lost while the index is sent; the next publish looks what became of it."""
    is_lost = False

    def lost(request: str, path: str) -> None:
        nonlocal is_lost
        is_lost = is_lost or (request == "write" and path == f"weight_v000001/{INDEX}")
        if is_lost:
            raise OSError(errno.EBUSY, "gone")

    with shop.publisher() as publisher:
        if arrived:
            shop.fs.after = lost
        else:
            shop.fs.before = lost
        with pytest.raises(SourceNotReady, match="it failed 5 times"):
            shop.publish(publisher)
        before = [path for request, path in shop.fs.requests if request == "remove"]
        assert before == []
        shop.fs.before = shop.fs.after = lambda request, path: None
        assert shop.check() == (1 if arrived else 0)
        publisher.publish(shop.state(2 if arrived else 1))
        assert publisher.version == (2 if arrived else 1)
    assert shop.check("local", "late") == (2 if arrived else 1)
    assert shop.stored() <= shop.named()


def test_what_cannot_be_written_leaves_nothing(shop: Shop) -> None:
    def full(request: str, path: str) -> None:
        if request == "write" and path == f"aggregate/{INDEX}":
            raise PermissionError("denied")
        if request == "write" and "model-00001" in path:
            raise PermissionError("denied")

    with shop.publisher() as publisher:
        shop.publish(publisher)
        shop.fs.before = full
        with pytest.raises(SourceUnusable, match="the store refuses writing it"):
            shop.publish(publisher)  # its aggregate
        assert publisher.version == 2
        with pytest.raises(SourceUnusable, match="the store refuses writing it"):
            shop.publish(publisher)  # a full version
        assert publisher.version == 2
        assert shop.check("local", "late") == 2
        shop.fs.before = lambda request, path: None
        shop.publish(publisher)
        shop.publish(publisher)
    assert shop.check("local", "other") == 4
    assert shop.stored() <= shop.named()


class Killed(BaseException):
    """Nothing runs after it."""


@pytest.mark.parametrize("done", [False, True])
def test_a_publisher_that_ends_at_any_request_leaves_a_stream(tmp_path: Path, done: bool) -> None:
    """Before or after the request reached the store; then another one goes on."""
    shop, last = Shop(tmp_path), 0
    for at in range(int(done), 24, 2):
        kill = _at(at)
        shop.fs.before, shop.fs.after = (_never, kill) if done else (kill, _never)
        with suppress(Killed), shop.publisher() as publisher:
            for _ in range(2):
                shop.publish(publisher)
        shop.fs.before = shop.fs.after = _never
        newest = shop.check("local", *(("late",) if at % 5 == 0 else ()))
        assert newest >= last
        last = newest
    assert last >= 12
    with shop.publisher() as publisher:
        shop.publish(publisher)
        shop.publish(publisher)
    prune(shop.place, keep=1)
    shop.check("local", "late")
    leftovers = {path for path in shop.stored() - shop.named() if "config.json" not in path}
    newest = min(published_versions(shop.place))
    assert not [path for path in leftovers if path < directory_of(shop.place, newest).name]


def _never(request: str, path: str) -> None:
    return


def _at(number: int) -> Callable[[str, str], None]:
    """End at the request of that number which changes something, and at all after it."""
    seen = 0

    def kill(request: str, path: str) -> None:
        nonlocal seen
        if request in ("write", "remove"):
            seen += 1
            if seen > number:
                raise Killed

    return kill


def test_ranks_write_one_version_together(shop: Shop) -> None:
    names = sorted(shop.state(3))  # all of them are made before the ranks share them

    def work(ranks: Ranks) -> int:
        with shop.publisher(ranks=ranks) as publisher:
            for version in range(1, 4):
                state = shop.state(version)
                publisher.publish({name: state[name] for name in names[ranks.rank :: 2]})
            return publisher.version

    assert together(2, work) == [3, 3]
    assert shop.check("local", "late") == 3
    assert shop.stored() <= shop.named()
    files = json.loads((directory_of(shop.place, 2) / INDEX).content() or b"")["weight_map"]
    marks = {name.split("-")[-1] for name in files.values()}
    assert len(set(files.values())) == 2
    assert len(marks) == 1


def test_prune_says_what_it_would_do_and_ends_what_was_half_done(shop: Shop) -> None:
    with Publisher(shop.place, run="a", base_dir=shop.base, anchor_every=2, threads=1) as publisher:
        for _ in range(5):
            shop.publish(publisher)
    planned = prune(shop.place, keep=1, dry_run=True)
    assert (planned.removed, planned.kept) == ((1, 2, 3), (4, 5))
    shop.fs.before = _at(2)
    with pytest.raises(Killed):
        prune(shop.place, keep=1)
    shop.fs.before = _never
    assert published_versions(shop.place) == (3, 4, 5)
    pruned = prune(shop.place, keep=1)
    assert (pruned.removed, pruned.kept) == ((3,), (4, 5))
    assert {path.split("/")[0] for path in shop.stored()} == {
        ".publisher",
        "weight_v000004",
        "weight_v000005",
    }
    shop.check()
