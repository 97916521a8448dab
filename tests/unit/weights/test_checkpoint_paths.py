"""Where files may lie, and what kind of thing they may be (A31)."""

import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from hotswap.errors import UpdateRejected
from hotswap.testing.raw_safetensors import entry, pack, write_directory
from hotswap.weights.checkpoint import Checkpoint
from hotswap.weights.folder import Folder, OpenFile
from hotswap.weights.roots import Roots

GOOD = pack({"w": entry("F32", [2], 0, 8)}, bytes(8))


def checkpoint_at(directory: Path) -> Path:
    return write_directory(directory, {"model.safetensors": GOOD})


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..\\x.safetensors",
        "x\0.safetensors",
        "./good.safetensors",
    ],
)
def test_an_index_names_plain_files_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    directory = write_directory(
        tmp_path / "model", {"good.safetensors": GOOD}, weight_map={"w": name}
    )
    with pytest.raises(UpdateRejected, match="not a plain file name"):
        Checkpoint.open(directory)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_mean_directories_are_refused(tmp_path: Path, name: str) -> None:
    with Folder.open(tmp_path) as folder, pytest.raises(UpdateRejected, match="plain file name"):
        folder.open_file(name)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [make_fifo, make_directory, make_device, make_socket])
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "generation_config.json", "pytorch_model.bin"],
)
def test_what_is_no_regular_file_is_refused_and_never_waited_for(make: object, name: str) -> None:
    assert callable(make)
    # Socket paths are short; pytest's directories are not.
    with tempfile.TemporaryDirectory() as short:
        directory = checkpoint_at(Path(short))
        if name == "pytorch_model.bin":
            (directory / "model.safetensors").unlink()
        (directory / name).unlink(missing_ok=True)
        make(directory / name)
        before = os.listdir("/proc/self/fd")
        with pytest.raises(UpdateRejected, match=f"{name}: not a regular file"):
            Checkpoint.open(directory)
        assert os.listdir("/proc/self/fd") == before


@pytest.mark.timeout(20)
def test_a_fifo_is_not_even_opened(tmp_path: Path) -> None:
    """Opening it would let a writer that waits for a reader go on."""
    directory = checkpoint_at(tmp_path)
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")
    with pytest.raises(UpdateRejected, match="not a regular file"):
        Checkpoint.open(directory)
    # ENXIO is what a writer sees while nobody has the FIFO open for reading.
    with pytest.raises(OSError, match="No such device or address"):
        os.open(directory / "model.safetensors", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "is empty"),
        ("missing", "No such file or directory"),
        ("file", "Not a directory"),
        ("nul\0byte", "null byte"),
        ("\ud800", "surrogates not allowed"),
        ("x" * 5000, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_a_source_that_is_no_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(b"x")
    Path("loop").symlink_to("loop")
    with pytest.raises(UpdateRejected, match=says) as caught:
        Checkpoint.open(source)
    str(caught.value).encode()


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside-not").mkdir()
    (tmp_path / "other").mkdir()
    return Roots.of([tmp_path / "inside", tmp_path / "other"])


def test_inside_a_root_is_allowed(tmp_path: Path, roots: Roots) -> None:
    for place in ("inside", "inside/deep/er", "other"):
        with Checkpoint.open(checkpoint_at(tmp_path / place), allowed=roots) as checkpoint:
            assert checkpoint.manifest.names == ("w",)


def test_a_link_that_stays_inside_is_allowed(tmp_path: Path, roots: Roots) -> None:
    directory = checkpoint_at(tmp_path / "inside/model")
    blob = tmp_path / "other/blob"
    (directory / "model.safetensors").rename(blob)
    (directory / "model.safetensors").symlink_to(blob)
    (tmp_path / "elsewhere").symlink_to(directory)
    with Checkpoint.open(tmp_path / "elsewhere", allowed=roots) as checkpoint:
        assert checkpoint.manifest.names == ("w",)


@pytest.mark.parametrize("place", ["outside", "inside-not/model", "inside/../outside"])
def test_a_directory_outside_is_refused_whatever_is_there(
    tmp_path: Path, roots: Roots, place: str
) -> None:
    messages = []
    for _ in ("nothing there", "a checkpoint"):
        with pytest.raises(UpdateRejected, match="outside the weights roots") as caught:
            Checkpoint.open(f"{tmp_path}/{place}", allowed=roots)
        messages.append(str(caught.value))
        checkpoint_at(Path(os.path.realpath(tmp_path / place)))
    assert messages[0] == messages[1]
    assert all(str(root) in messages[0] for root in roots.paths)


@pytest.mark.parametrize(
    "what", ["directory", "config.json", "generation_config.json", "model.safetensors", "index"]
)
def test_a_link_out_is_refused(tmp_path: Path, roots: Roots, what: str) -> None:
    outside = checkpoint_at(tmp_path / "outside")
    (outside / "generation_config.json").write_text("{}")
    directory = tmp_path / "inside/model"
    if what == "directory":
        directory.symlink_to(outside)
    else:
        name = "model.safetensors.index.json" if what == "index" else what
        write_directory(outside, {}, weight_map={"w": "model.safetensors"})
        write_directory(directory, {"model.safetensors": GOOD}, weight_map=None)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(outside / name)
    with pytest.raises(UpdateRejected, match="outside the weights roots"):
        Checkpoint.open(directory, allowed=roots)
    # Without roots links lead anywhere: Hugging Face caches are made of them.
    with Checkpoint.open(directory) as checkpoint:
        assert checkpoint.manifest.names == ("w",)


def test_a_link_out_is_refused_without_opening_its_target(tmp_path: Path, roots: Roots) -> None:
    directory = checkpoint_at(tmp_path / "inside/model")
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(UpdateRejected, match="resolves to /dev/zero, outside"):
        Checkpoint.open(directory, allowed=roots)


def test_a_root_that_is_a_link_is_resolved_once(tmp_path: Path) -> None:
    checkpoint_at(tmp_path / "a/model")
    checkpoint_at(tmp_path / "b/model")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    roots = Roots.of([link])
    with Checkpoint.open(link / "model", allowed=roots):
        pass
    link.unlink()
    link.symlink_to(tmp_path / "b")
    with pytest.raises(UpdateRejected, match="outside the weights roots"):
        Checkpoint.open(link / "model", allowed=roots)


def test_no_root_allows_nothing() -> None:
    assert not Roots.of([])(Path("/"))
    assert str(Roots.of([])) == "(none)"


def test_any_callable_may_judge(tmp_path: Path) -> None:
    directory = checkpoint_at(tmp_path)
    judged: list[Path] = []

    def only_json(real: Path) -> bool:
        judged.append(real)
        return real.is_dir() or real.suffix == ".json"

    with pytest.raises(UpdateRejected, match="allowed to this server"):
        Checkpoint.open(directory, allowed=only_json)
    real = directory.resolve()
    assert judged == [real, real, real / "config.json", real / "model.safetensors"]


def test_a_directory_swapped_while_it_is_opened_is_refused(tmp_path: Path, roots: Roots) -> None:
    """The look before the open says inside; what was opened is outside."""
    inside = checkpoint_at(tmp_path / "inside/model")
    outside = checkpoint_at(tmp_path / "outside")
    looks = []

    def swapped_after_the_first_look(real: Path) -> bool:
        looks.append(real)
        if len(looks) == 1:
            inside.rename(tmp_path / "inside/gone")
            inside.symlink_to(outside)
        return roots(real)

    before = os.listdir("/proc/self/fd")
    with pytest.raises(UpdateRejected, match=r"resolves to .*/outside"):
        Checkpoint.open(inside, allowed=swapped_after_the_first_look)
    assert os.listdir("/proc/self/fd") == before


def test_a_directory_renamed_over_meanwhile_is_not_mixed_in(tmp_path: Path) -> None:
    """config.json of one version and weights of the next would be a mixture."""
    v1 = checkpoint_at(tmp_path / "v1")
    v2 = write_directory(
        tmp_path / "v2", {"model.safetensors": pack({"v": entry("U8", [1], 0, 1)}, b"2")}
    )

    def replace_once(real: Path) -> bool:
        if real.name == "config.json" and v2.exists():
            v1.rename(tmp_path / "old")
            v2.rename(v1)
        return True

    with Checkpoint.open(v1, allowed=replace_once) as checkpoint:
        assert checkpoint.manifest.names == ("w",)


def test_reprs(tmp_path: Path) -> None:
    checkpoint_at(tmp_path)
    with Folder.open(tmp_path) as folder, folder.open_file("model.safetensors") as file:
        assert repr(folder) == f"<Folder {tmp_path}>"
        assert repr(file) == f"<OpenFile model.safetensors {len(GOOD)} bytes>"


def test_reads_from_many_threads_do_not_share_a_position(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(bytes(range(256)) * 64)
    wrong: list[int] = []

    def read_all(file: OpenFile, shift: int) -> None:
        for offset in range(shift, 256 * 63, 97):
            if file.read_bytes(offset, 1)[0] != offset % 256:
                wrong.append(offset)

    with Folder.open(tmp_path) as folder, folder.open_file("numbers") as file:
        threads = [threading.Thread(target=read_all, args=(file, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
