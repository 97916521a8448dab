"""A copy that a pull found damaged and could not make anew is of no use to any reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hotswap.cli import main
from hotswap.engine.loading import load_model
from hotswap.pulls.logged import held_checkpoint
from hotswap.sparse.cache import PATCHES
from hotswap.stream import Keep, LocalDamaged, PullMode, PullReport, pull, reading, verify_local
from hotswap.stream.lock import reading as reading_all
from hotswap.stream.recorded import RecordedBase
from hotswap.stream.state import Reserved
from hotswap.stream.stored import StoredTensors
from tests.tiers import mostly_long
from tests.unit.sparse.rig import Served, Trainer, checksums, state_of
from tests.unit.stream.test_log_readers import Models

Capture = pytest.CaptureFixture[str]
KEEPS = (Keep.FILES, Keep.COPIES, Keep.LOG)
ADVICE = "pull it again, which makes the copy anew"


def turn_a_bit(local: Path) -> None:
    path = next(local.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def no_state(local: Path) -> None:
    Reserved(local).state.unlink()


def cut_state(local: Path) -> None:
    path = Reserved(local).state
    path.write_bytes(path.read_bytes()[:100])


def other_version(local: Path) -> None:
    """One bit of it: well-formed, and of another version."""
    path = Reserved(local).state
    text = path.read_bytes()
    at = text.index(b'"version": "00000') + len(b'"version": "00000')
    path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])


class Copy(Models):
    """Model ``b`` pulled in the way ``keep``."""

    def __init__(self, root: Path, keep: Keep) -> None:
        super().__init__(root)
        self.local = root / "copy"
        self.keep = keep
        self.reach(0)
        self.reach(1)

    def reach(self, target: int, *, check: bool = False) -> PullReport:
        return pull(
            self.local,
            self.source,
            target,
            base_dir=self.a,
            threads=1,
            keep=self.keep,
            check=check,
        )

    def condemn(self) -> Path:
        """Where the source is meanwhile."""
        turn_a_bit(self.local)
        away = self.source.rename(self.source.with_name("away"))
        with pytest.raises(LocalDamaged, match="could not be seeded again"):
            self.reach(1, check=True)
        return away


@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[Keep.LOG]))
def test_no_reader_takes_it_until_a_pull_made_it_anew(
    tmp_path: Path, keep: Keep, capsys: Capture
) -> None:
    copy = Copy(tmp_path, keep)
    away = copy.condemn()
    refuse_everywhere(copy, tmp_path, capsys)
    away.rename(copy.source)
    assert copy.reach(1).mode is PullMode.RESEED
    assert verify_local(copy.local).faults == ()
    load_model(copy.local)
    assert main(["check", str(copy.local), "--model", str(copy.a)]) == 0


@pytest.mark.parametrize("lose", [no_state, cut_state, other_version])
@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[Keep.LOG]))
def test_nor_one_whose_state_is_lost(
    tmp_path: Path, keep: Keep, lose: Callable[[Path], None], capsys: Capture
) -> None:
    copy = Copy(tmp_path, keep)
    lose(copy.local)
    refuse_everywhere(copy, tmp_path, capsys)
    copy.reach(1)
    assert verify_local(copy.local).faults == ()
    load_model(copy.local)


def refuse_everywhere(copy: Copy, tmp_path: Path, capsys: Capture) -> None:
    local, model = copy.local, str(copy.a)
    for read in (load_model, verify_local, StoredTensors.at):
        with pytest.raises(LocalDamaged, match=ADVICE):
            read(local)
    for enter in (reading, reading_all, held_checkpoint):
        with pytest.raises(LocalDamaged, match=ADVICE), enter(local):
            raise AssertionError("it was read")
    assert ADVICE in str(RecordedBase.of(local).trouble)
    capsys.readouterr()
    for words in (
        ["check", str(local), "--model", model],
        ["publish", str(local), "--to", str(tmp_path / "published")],
        ["push", str(local), "--url", "http://127.0.0.1:9"],
        ["verify", str(local)],
        ["serve", "--model", str(local), "--port", "0"],
    ):
        assert main(words) != 0, words
        assert ADVICE in capsys.readouterr().err, words
    assert not (tmp_path / "published").exists()


@pytest.mark.parametrize("keep", mostly_long(KEEPS, but=[Keep.LOG]))
async def test_an_update_that_was_refused_is_refused_until_then(tmp_path: Path, keep: Keep) -> None:
    trainer = Trainer(tmp_path, state_of(1))
    async with Served(trainer, tmp_path, keep=keep) as served:
        before = checksums(served.target)
        await served.pull(0)
        await served.pull(trainer.publish())
        PATCHES.clear()
        turn_a_bit(served.local)
        with pytest.raises(LocalDamaged, match=ADVICE):
            await served.load(version=1)
        away = trainer.source.rename(trainer.source.with_name("away"))
        with pytest.raises(LocalDamaged):
            await served.pull(1)
        for _ in range(2):
            with pytest.raises(LocalDamaged, match=ADVICE):
                await served.load(version=1)
        assert checksums(served.target) == before
        away.rename(trainer.source)
        await served.pull(1)
        await served.load(version=1)
        served.assert_serves(trainer.states[-1])


def test_what_another_receiver_wrote_is_read_as_it_is(tmp_path: Path) -> None:
    """It says a version, and nothing that its bytes could be compared with."""
    copy = Copy(tmp_path, Keep.FILES)
    Reserved(copy.local).state.write_text('{"version": "000001"}')
    load_model(copy.local)
