"""What a follower is told, and what a server makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotswap.errors import UpdateRejected
from hotswap.follow import FOLLOW, CommitPace, FollowOptions
from hotswap.follow.start import FollowSetup
from hotswap.settings import Settings, SettingsError
from hotswap.stream import SourceUnusable
from hotswap.stream.objects import Objects
from hotswap.stream.recorded import RecordedBase
from hotswap.testing.fake_followed import FakeFollowed
from hotswap.testing.fakes import FakeStrategy, Steps
from hotswap.types import PauseMode
from tests.unit.stream.streams import Stream


def values(**told: Any) -> dict[str, object]:
    return Settings(**{"model": "/models/a", "follow": "/runs/one", **told}).option_values


def options(**told: Any) -> FollowOptions:
    found = FollowOptions.from_values(values(**told))
    assert found is not None
    return found


def test_what_is_not_told_has_a_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert FollowOptions.from_values(values(follow=None)) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = options()
    assert (found.source, found.base) == (Path("/runs/one"), Path("/models/a"))
    assert (found.pace, found.interval_s) == (CommitPace.MANUAL, 5.0)
    assert (found.ready_version, found.pause_mode) == (None, PauseMode.RETRACT)
    assert found.local.parent == tmp_path / "hotswap"
    assert found.local.name.startswith("follow-one-")
    # Another model is another stream, and its copy another one.
    assert options(model="/models/b").local != found.local == options().local
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert options().local.parent == tmp_path / "home" / ".cache" / "hotswap"


def test_what_is_told(tmp_path: Path) -> None:
    found = options(
        follow="s3://bucket/run",
        follow_local=str(tmp_path),
        follow_commit="auto",
        follow_ready_version="7",
        follow_pause_mode="wait",
        follow_interval_s=0.5,
    )
    assert str(found.source) == "s3://bucket/run"
    assert (found.local, found.pace, found.ready_version) == (tmp_path, CommitPace.AUTO, 7)
    assert (found.pause_mode, found.interval_s) == (PauseMode.WAIT, 0.5)
    # A root for copies has a place for this one too.
    assert options(local_root=(str(tmp_path),)).local.parent == tmp_path


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"model": None}, "follow needs model"),
        ({"follow_local": "/models/a"}, "follow-local /models/a is the model too"),
        ({"follow_local": "/models/a/in"}, "and the model /models/a lie in one another"),
        ({"follow_local": "/models"}, "and the model /models/a lie in one another"),
        (
            {"follow": "/streams/a", "follow_local": "/streams/a/in"},
            "and the source /streams/a lie in one another",
        ),
        ({"follow_ready_version": "latest"}, "wanted newest, or the number of a version"),
        ({"follow_ready_version": "9" * 19}, "wanted newest, or the number of a version"),
    ],
)
def test_what_cannot_be_meant(told: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        options(**told)


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"follow": " "}, "--follow is empty"),
        ({"follow_local": ""}, "--follow-local is empty"),
        ({"follow_commit": "never"}, "--follow-commit is never, wanted one of manual, auto"),
        ({"follow_interval_s": 0.0}, "--follow-interval-s is 0.0, wanted 0.01"),
    ],
)
def test_settings_that_are_none(told: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        values(**told)


def test_a_url_that_is_none() -> None:
    with pytest.raises(UpdateRejected):
        options(follow="s3://user:secret@bucket/run")


def test_a_source_that_can_be_none_ends_the_start(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "full")
    for source, why in (
        (stream.base, "is a checkpoint and has no published version"),
        (stream.source / "weight_v000001", "is version 1 itself"),
        (stream.base / "config.json", "is a file, wanted a directory of published versions"),
    ):
        with pytest.raises(SourceUnusable, match=why):
            FollowSetup.of(values(follow=str(source), follow_local=str(tmp_path / "local")))
    assert not (tmp_path / "local").exists()


def test_strategies_may_read_what_is_pulled(tmp_path: Path) -> None:
    local = str(tmp_path / "local")

    def roots(**told: Any) -> object:
        setup = FollowSetup.of(values(follow_local=local, **told))
        assert setup is not None
        assert Path(local).is_dir()
        return setup.strategy_values["local-root"]

    assert roots() == ()
    assert roots(local_root=("/copies",)) == ("/copies", local)
    assert roots(plugin_options={"weights-root": ("/weights",)}) == (local,)
    assert FollowSetup.of(values(follow=None)) is None


def test_without_a_reader_of_local_checkpoints(tmp_path: Path) -> None:
    setup = FollowSetup.of(values(follow_local=str(tmp_path / "local")))
    assert setup is not None
    disk = FakeStrategy(sources={}, steps=Steps())
    known = setup.strategies({"disk": disk})
    assert set(known) == {"disk", FOLLOW}
    assert repr(known[FOLLOW]) == f"<FollowStrategy by {disk!r}>"
    with pytest.raises(UpdateRejected, match="pip install hotswap-disk"):
        setup.strategies({"other": disk})


async def test_its_pulls_need_no_root_of_others(tmp_path: Path) -> None:
    stream = Stream(tmp_path, "xor")
    told = values(
        model=str(stream.base),
        follow=str(stream.source),
        follow_local=str(stream.local),
        local_root=(str(tmp_path / "elsewhere"),),
        source_root=(str(tmp_path / "elsewhere"),),
        follow_interval_s=86400,
    )
    setup = FollowSetup.of(told)
    assert setup is not None
    base = RecordedBase.of(stream.base)
    async with setup.follower(FakeFollowed(), base=base) as follower:
        assert (await follower.look()).pulled == 1
    assert f"<Follower of {stream.source} " in repr(follower)
    url = FollowSetup.of({**told, "follow": "memory://nowhere/run"})
    assert url is not None
    assert isinstance(url.options.source, Objects)
    async with url.follower(FakeFollowed(), base=base) as follower:
        # It may ask the store, and finds nothing there.
        assert (await follower.look()).failures == 0
