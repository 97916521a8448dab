"""What reads checkpoints and published versions: a folder and its files, wherever they lie.

``hotswap.weights.folder`` has those of a file system.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

__all__ = ["AnyFile", "AnyFolder"]


class AnyFile(Protocol):
    """One file, open for reading at any offset from any thread."""

    @property
    def name(self) -> str:
        """Its name in the folder."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size when it was opened; a later change is an error."""
        ...

    @property
    def stamp(self) -> str:
        """What another file of this name and size has another one of: its time, or a tag."""
        ...

    def fileno(self) -> int:
        """The descriptor. Raises: OSError where there is none."""
        ...

    def read_at(self, offset: int, *outs: memoryview) -> None:
        """Fill ``outs`` one after the other from ``offset`` on.

        Raises: OSError when the file ends early or was changed since it was opened.
        """
        ...

    def read_bytes(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``. Raises: as ``read_at``."""
        ...

    def close(self) -> None:
        """Let go of it. Idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class AnyFolder(Protocol):
    """Files by plain names, and nothing below them."""

    @property
    def path(self) -> object:
        """Where it is, for messages."""
        ...

    def names(self) -> frozenset[str]:
        """Every name in it. Raises: UpdateRejected."""
        ...

    def has(self, name: str) -> bool:
        """Whether ``name`` is in it, by a look of now. Raises: UpdateRejected."""
        ...

    def open_file(self, name: str) -> AnyFile:
        """Open the file ``name``.

        Raises: UpdateRejected for a name that is no plain file name, and for what cannot be
        opened; because of a FileNotFoundError when it is not there.
        """
        ...

    def read_object(self, name: str) -> dict[str, object]:
        """Parse the JSON file ``name`` (at most 100 MiB). Raises: UpdateRejected."""
        ...

    def close(self) -> None:
        """Let go of it; files that were opened stay open. Idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
