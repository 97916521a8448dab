"""What pulls keep in a local checkpoint is in the reference, name by name."""

from __future__ import annotations

from pathlib import Path

from hotswap.stream import Keep, pull
from hotswap.stream.state import Reserved, unfinished
from hotswap.stream.suspect import suspected
from tests.markdown_blocks import ROOT
from tests.unit.stream.streams import Stream

PAGE = ROOT / "docs" / "reference" / "streams.md"


def documented() -> set[str]:
    """The names of the table below *Reserved names*."""
    _, _, after = PAGE.read_text().partition("### Reserved names")
    rows = [line for line in after.partition("\n#")[0].splitlines() if line.startswith("| `")]
    return {name.strip("` /") for row in rows for name in row.split("|")[1].split(",")}


def test_every_reserved_name_is_documented() -> None:
    paths = Reserved(Path("local"))
    names = {
        path.name
        for path in (getattr(paths, name) for name in dir(Reserved) if not name.startswith("_"))
        if isinstance(path, Path) and path.parent == paths.home
    }
    assert names | {"*.tmp"} == documented()
    assert unfinished(paths.state).name == "state.json.tmp"


def test_no_pull_leaves_another_name(tmp_path: Path) -> None:
    stream, seen = Stream(tmp_path, "xor", "gap", "overwrite", "xor"), set[str]()
    for target, keep in enumerate((Keep.FILES, Keep.COPIES, Keep.COPIES, Keep.LOG)):
        pull(stream.local, stream.source, target, base_dir=stream.base, threads=1, keep=keep)
        assert suspected(stream.local)
        seen |= {path.name for path in Reserved(stream.local).home.iterdir()}
    assert {"state.json", "lock", "log", "log.json", "spare", "files.json", "suspect"} <= seen
    assert seen <= documented()
