"""What a base checkpoint was when somebody began to rely on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hotswap.errors import UpdateRejected
from hotswap.stream.errors import BaseChanged
from hotswap.stream.stored import StoredTensors

__all__ = ["RecordedBase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBase:
    """The real ``path`` and the ``digest`` of index, headers, sizes and times of its files.

    Headers are read and no tensor. ``trouble`` says why there is no digest: what was no
    checkpoint of safetensors then is no base later either.
    """

    path: Path
    digest: str | None = None
    trouble: str | None = None

    @classmethod
    def of(cls, directory: str | os.PathLike[str]) -> Self:
        """Record ``directory`` as it is now; a link that leads there may move later."""
        path = Path(os.path.realpath(directory))
        try:
            with StoredTensors.at(path, timed=True) as base:
                return cls(path=path, digest=base.digest)
        except UpdateRejected as error:
            return cls(path=path, trouble=str(error))

    def check(self) -> None:
        """Raises: BaseChanged when nothing could be recorded."""
        if self.trouble is not None:
            raise BaseChanged(
                f"{self.path} could not be recorded as the base checkpoint, which is version 0 "
                f"({self.trouble}); start the server with a checkpoint of safetensors"
            )
