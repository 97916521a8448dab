"""A mount that lags, and the hook that waits for it: in hotswap's suite, and step by step."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import safetensors.numpy
from hotswap_wait_visible import Waiting, hotswap_options, hotswap_pre_read
from hotswap_wait_visible.looking import has_newer, what_is_missing

from hotswap.errors import UpdateRejected
from hotswap.options import option_values
from hotswap.plugin_hooks import PreReadHook
from hotswap.pre_read import pull_pre_read
from hotswap.stream import SourceNotReady, directory_of, publish_delta, pull
from hotswap.stream.layout import INDEX
from hotswap.testing import Hidden, Hide, PreRead, PreReadTests, leave_out

Step = Callable[[], object]

OPTIONS: dict[str, object] = {
    "wait-visible-root": ("/",),
    "wait-visible-s": 3.0,
    "wait-visible-every-s": 0.001,
}
FILE = "model-00000-of-00001.safetensors"


class LaggingMount:
    """Takes a step of a publication each time that the directory above it is listed.

    Who asks for a name before it is there is told so, and written down: a real mount
    would go on to say so for a while.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.asked_too_early = set[str]()
        self._steps = dict[str, list[Step]]()
        listdir, lstat = os.listdir, os.lstat

        def listing(path: str | Path) -> list[str]:
            # A directory that is open already is listed by its descriptor.
            named = os.readlink(path) if str(path).startswith("/proc/self/fd/") else str(path)
            steps = self._steps.get(named)
            if steps:
                steps.pop(0)()
            return listdir(path)

        def asking(path: str | Path, *, dir_fd: int | None = None) -> os.stat_result:
            try:
                return lstat(path, dir_fd=dir_fd)
            except FileNotFoundError:
                self.asked_too_early.add(str(path))
                raise

        monkeypatch.setattr(os, "listdir", listing)
        monkeypatch.setattr(os, "lstat", asking)

    def shows(self, parent: Path, *steps: Step) -> None:
        """Take ``steps`` one by one at the listings of ``parent``."""
        self._steps[str(parent)] = list(steps)

    def lags(self, directory: Path) -> None:
        """Show ``directory``, which is whole, as late as a mount can.

        First nothing, then no file, then a file too short, then no index, then all of it.
        """
        away, rest = (directory.with_name(f".{directory.name}{n}") for n in range(2))
        rest.mkdir()
        for name in (INDEX, FILE):
            (directory / name).rename(rest / name)
        (rest / "short").write_bytes((rest / FILE).read_bytes()[:-1])
        directory.rename(away)
        self.shows(directory.parent, nothing_yet, partial(away.rename, directory))
        self.shows(
            directory,
            nothing_yet,
            partial((rest / "short").rename, directory / FILE),
            partial((rest / INDEX).rename, directory / INDEX),
            nothing_yet,
            partial((rest / FILE).replace, directory / FILE),
        )


def nothing_yet() -> None:
    """The step of a mount that has not heard of it."""


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaggingMount:
    return LaggingMount(tmp_path, monkeypatch)


def write_checkpoint(directory: Path) -> Path:
    """One file and an index."""
    directory.mkdir(parents=True)
    tensors = {"w": np.arange(300, dtype=np.float32)}
    safetensors.numpy.save_file(tensors, directory / FILE)
    (directory / INDEX).write_text(json.dumps({"weight_map": {"w": FILE}}))
    return directory


def publish(source: Path, version: int) -> Path:
    """A delta of one tensor."""
    old = np.zeros(300, np.uint8)
    return publish_delta(source, version, [[("w", old, old + 1)]])


def is_whole(directory: Path, size: int) -> bool:
    path = directory / FILE
    return (directory / INDEX).exists() and path.exists() and path.stat().st_size == size


class TestOnCheckpoints(PreReadTests):
    options: ClassVar[Mapping[str, object]] = OPTIONS

    @pytest.fixture
    def pre_read(self) -> PreRead:
        return hotswap_pre_read

    @pytest.fixture
    def hide(self, tmp_path: Path, mount: LaggingMount) -> Hide:
        numbers = itertools.count()

        def make() -> Hidden:
            directory = write_checkpoint(tmp_path / str(next(numbers)) / "step-1")
            size = (directory / FILE).stat().st_size
            mount.lags(directory)
            return Hidden(source=str(directory), is_readable=partial(is_whole, directory, size))

        return make


class TestOnStreams(PreReadTests):
    options: ClassVar[Mapping[str, object]] = OPTIONS
    test_an_update_need_not_have_a_version = leave_out("a pull always has one")
    test_a_source_that_is_not_there_is_an_error = leave_out("it is the same one, and takes a while")

    @pytest.fixture
    def pre_read(self) -> PreRead:
        return hotswap_pre_read

    @pytest.fixture
    def hide(self, tmp_path: Path, mount: LaggingMount) -> Hide:
        numbers = itertools.count()

        def make() -> Hidden:
            source = tmp_path / str(next(numbers))
            directory = publish(source, 1)
            size = (directory / FILE).stat().st_size
            mount.lags(directory)
            return Hidden(source=str(source), is_readable=partial(is_whole, directory, size))

        return make


async def test_no_name_is_asked_for_before_it_is_listed(
    tmp_path: Path, mount: LaggingMount
) -> None:
    source = tmp_path / "away" / "stream"
    mount.lags(publish(source, 7))
    (tmp_path / "away").rename(tmp_path / ".away")
    mount.shows(tmp_path, nothing_yet, partial((tmp_path / ".away").rename, tmp_path / "away"))
    await hotswap_pre_read(str(source), "7", OPTIONS | {"wait-visible-root": (str(tmp_path),)})
    assert is_whole(directory_of(source, 7), (directory_of(source, 7) / FILE).stat().st_size)
    assert mount.asked_too_early == set()


def test_a_pull_waits_for_its_version_and_reads_it_whole(
    tmp_path: Path, mount: LaggingMount
) -> None:
    base, source, local = tmp_path / "base", tmp_path / "stream", tmp_path / "local"
    base.mkdir()
    old = np.zeros(300, np.uint8)
    safetensors.numpy.save_file({"w": old}, base / "model.safetensors")
    mount.lags(publish(source, 1))
    hook = PreReadHook(name="hotswap-wait-visible", call=hotswap_pre_read, options=OPTIONS)
    pull(local, source, 1, base_dir=base, pre_read=pull_pre_read([hook]))
    found = safetensors.numpy.load_file(local / "model.safetensors")
    assert np.array_equal(found["w"], old + 1)
    assert str(directory_of(source, 1)) not in mount.asked_too_early
    in_vain = replace(hook, options=OPTIONS | {"wait-visible-s": 0.05})
    with pytest.raises(SourceNotReady, match=r"is not visible after 0\.05 s") as caught:
        pull(local, source, 2, base_dir=base, pre_read=pull_pre_read([in_vain]))
    assert caught.value.local_version == 1


def missing(root: Path, source: Path, version: str | None = "7") -> str:
    found = what_is_missing(root, source, version)
    assert found is not None
    return found


def test_each_thing_that_is_missing_is_named(tmp_path: Path) -> None:
    source = tmp_path / "stream"
    assert "stream is not among the 0 names" in missing(tmp_path, source)
    source.mkdir()
    assert "neither an index nor weights among 0 names" in missing(tmp_path, source)
    assert "wanted weight_v000007, or weights of its own" in missing(tmp_path, source)
    assert missing(tmp_path, source, "label").endswith("wanted weights")
    directory = publish(source, 7)
    assert what_is_missing(tmp_path, source, "7") is None
    assert what_is_missing(tmp_path, source, "000007") is None
    assert "wanted weight_v000008" in missing(tmp_path, source, "8")
    whole, index = (directory / FILE).read_bytes(), (directory / INDEX).read_bytes()
    for length in (0, 7, 8, 9, len(whole) - 1):
        (directory / FILE).write_bytes(whole[:length])
        assert f"{length} bytes are there" in missing(tmp_path, source)
    (directory / FILE).unlink()
    assert f"{FILE} is not among the 1 names" in missing(tmp_path, source)
    (directory / FILE).write_bytes(whole)
    (directory / INDEX).write_bytes(index[:-9])
    assert INDEX in missing(tmp_path, source)
    (directory / INDEX).write_text("{}")
    assert "has no weight_map yet" in missing(tmp_path, source)
    (directory / INDEX).unlink()
    assert "holds deltas and there is no" in missing(tmp_path, source)
    (directory / FILE).unlink()
    assert "no weights" in missing(tmp_path, source)


def test_a_version_in_which_nothing_changed_is_whole(tmp_path: Path) -> None:
    publish_delta(tmp_path / "stream", 7, [])
    assert what_is_missing(tmp_path, tmp_path / "stream", "7") is None


def test_full_versions_and_other_checkpoints(tmp_path: Path) -> None:
    source = tmp_path / "stream"
    directory = write_checkpoint(directory_of(source, 7))
    assert what_is_missing(tmp_path, source, "7") is None
    assert what_is_missing(tmp_path, directory, "7") is None
    (directory / INDEX).unlink()
    assert "0 of 1 shards" not in str(what_is_missing(tmp_path, source, "7"))
    (directory / FILE).rename(directory / "model.safetensors")
    assert what_is_missing(tmp_path, source, "7") is None
    os.truncate(directory / "model.safetensors", 100)
    assert "100 bytes are there" in missing(tmp_path, source)
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    assert "1 of 2 shards" in missing(tmp_path, source)
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "pytorch_model.bin").write_bytes(b"short or not, nobody can tell")
    assert what_is_missing(tmp_path, source, "7") is None


def test_a_file_that_could_hang_a_reader_is_not_opened(tmp_path: Path) -> None:
    directory = publish(tmp_path / "stream", 7)
    (directory / FILE).unlink()
    os.mkfifo(directory / FILE)
    assert "not a regular file" in missing(tmp_path, tmp_path / "stream")
    (directory / INDEX).write_text(json.dumps({"weight_map": {"w": "../../x.safetensors"}}))
    assert "is not among" in missing(tmp_path, tmp_path / "stream")


@pytest.mark.parametrize("source", ["", "a\0b", "relative", "host:/path", "s3://bucket/x", "/else"])
async def test_what_is_not_on_the_mount_is_not_looked_at(source: str, tmp_path: Path) -> None:
    options = OPTIONS | {"wait-visible-root": (str(tmp_path),)}
    await hotswap_pre_read(source, "7", options)
    await hotswap_pre_read(str(tmp_path.parent), "7", options)
    await hotswap_pre_read(f"{tmp_path}/../elsewhere", "7", options)


async def test_without_a_root_nothing_is_waited_for(tmp_path: Path) -> None:
    options = option_values(hotswap_options(), environ={})
    assert Waiting.from_options(options) == Waiting(roots=(), within_s=30.0, every_s=0.2)
    await hotswap_pre_read(str(tmp_path / "none"), "7", options)


async def test_past_the_time_out_it_says_what_is_missing(tmp_path: Path) -> None:
    publish(tmp_path, 6)
    options = OPTIONS | {"wait-visible-root": (str(tmp_path),), "wait-visible-s": 0.05}
    with pytest.raises(SourceNotReady, match=r"not visible after 0.05 s") as caught:
        await hotswap_pre_read(str(tmp_path), "7", options)
    assert caught.value.retryable
    assert str(caught.value).startswith("hotswap-wait-visible: ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("wait-visible-s", 0.0),
        ("wait-visible-s", 60.0),
        ("wait-visible-s", float("nan")),
        ("wait-visible-every-s", -1.0),
        ("wait-visible-every-s", "often"),
        ("wait-visible-root", 7),
    ],
)
async def test_an_option_of_no_use_is_named(option: str, value: object) -> None:
    with pytest.raises(UpdateRejected, match=f"{option} is {value!r}, wanted"):
        await hotswap_pre_read("/x", "7", OPTIONS | {option: value})


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("wait-visible-s", "60"),
        ("wait-visible-s", "nan"),
        ("wait-visible-every-s", "0"),
        ("wait-visible-every-s", "inf"),
    ],
)
def test_an_option_of_no_use_stops_the_start(option: str, text: str) -> None:
    variable = f"HOTSWAP_{option.upper().replace('-', '_')}"
    with pytest.raises(ValueError, match=f"^{variable}: .*{option}.*, wanted"):
        option_values(hotswap_options(), environ={variable: text})


async def test_a_version_that_was_pruned_is_left_to_the_pull_to_tell(tmp_path: Path) -> None:
    options = {"wait-visible-root": (str(tmp_path),), "wait-visible-s": 0.05}
    for name in ("weight_v000003", "weight_v000004"):
        (tmp_path / "stream" / name).mkdir(parents=True)
    waiting = Waiting.from_options(options)
    await waiting.until_whole(str(tmp_path / "stream"), "2")
    for version in ("3", "5", "a label", None):
        with pytest.raises(SourceNotReady, match="is not visible after"):
            await waiting.until_whole(str(tmp_path / "stream"), version)
    assert not has_newer(tmp_path / "nowhere", "2")
