"""With ``--local-checkpoint log`` the copy's files stay, and its log is what is read."""

from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from hotswap_delta_pull import DeltaPullStrategy

from hotswap.stream import directory_of, materialize, publish_delta, survey_local
from hotswap.types import Placement, Readable, Update

VALUES = [np.arange(4096, dtype=np.float32) + value / 4 for value in range(5)]


async def read(strategy: DeltaPullStrategy, source: Path, version: int) -> torch.Tensor:
    async with strategy.open(
        Update(source=str(source), version=str(version)), Placement()
    ) as stage:
        ((name, payload),) = [pair for bucket in stage.buckets() for pair in bucket]
        assert name == "w"
        assert isinstance(payload, Readable)
        out = torch.empty(payload.spec.shape)
        payload.read_into(out)
        return out


async def test_versions_are_read_from_the_log(tmp_path: Path) -> None:
    base, source, copies = tmp_path / "base", tmp_path / "stream", tmp_path / "copies"
    base.mkdir()
    copies.mkdir()
    (base / "config.json").write_text("{}")
    safetensors.numpy.save_file({"w": VALUES[0]}, base / "model.safetensors")
    for version, encoding in enumerate(("gap", "xor", "overwrite", "gap"), start=1):
        old, new = (VALUES[at].view(np.uint8) for at in (version - 1, version))
        publish_delta(source, version, [[("w", old, new)]], encoding=encoding)
    values = {"model": str(base), "local-root": (str(copies),), "local-checkpoint": "log"}
    strategy = DeltaPullStrategy.from_options(values)
    strategy.puller._compactor.stop()  # here the log stays, however long this takes
    await read(strategy, source, 0)
    (copy,) = copies.iterdir()
    file = copy / "model.safetensors"
    seeded = file.stat()
    # The second time of each, nothing is pulled; version 3 comes with version 2.
    for version in (1, 1, 3, 3):
        assert torch.equal(await read(strategy, source, version), torch.tensor(VALUES[version]))
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == (
            seeded.st_ino,
            seeded.st_mtime_ns,
        )
    assert survey_local(copy).log_versions == (1, 2, 3)
    # Version 4 is gone before it is pulled, and what is held does not need it.
    moved = directory_of(source, 4).rename(tmp_path / "moved")
    assert torch.equal(await read(strategy, source, 3), torch.tensor(VALUES[3]))
    moved.rename(directory_of(source, 4))
    materialize(copy, threads=1)
    assert torch.equal(await read(strategy, source, 3), torch.tensor(VALUES[3]))
    assert torch.equal(await read(strategy, source, 4), torch.tensor(VALUES[4]))
    assert survey_local(copy).log_versions == (4,)
    # A directory of one version names it.
    update = Update(source=str(directory_of(source, 4)))
    async with strategy.open(update, Placement()) as stage:
        assert stage.manifest["w"].shape == (4096,)
