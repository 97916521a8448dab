"""URLs of object stores: where they may lead, and what they never bring along.

Rules:

* Only plain characters, and no part that means another place: what begins with a root lies
  below it, whatever a store makes of dots and slashes.
* Credentials come from the environment or the machine. A URL that may bring some is refused,
  and what it says after its scheme is not repeated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

__all__ = ["SCHEMES", "ObjectUrl", "is_url"]

SCHEMES = ("s3", "gs", "memory")
"""Which stores are known; the last is of one process, for tests."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_PART = re.compile(r"[A-Za-z0-9!_.*'()=+, -]{1,255}")


def is_url(text: str) -> bool:
    """Whether ``text`` is meant as a URL; what is not is the path of a directory."""
    return _URL.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """``scheme://path``; ``path`` is bucket and prefix, with no slash at either end."""

    scheme: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises: ValueError, which repeats nothing that could be a password."""
        found = _URL.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r:.200} is no URL, wanted such as s3://bucket/prefix")
        scheme, path = found[1].lower(), found[2].strip("/")
        if scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise ValueError(f"{scheme}://... is of no store that is known, wanted one of {known}")
        parts = path.split("/")
        if not all(_PART.fullmatch(part) and part.strip(".") for part in parts):
            raise ValueError(
                f"{scheme}://*** is no plain URL of a bucket and a prefix in it, wanted such as "
                f"{scheme}://bucket/prefix of letters, digits and !_.*'()=+, -; credentials come "
                "from the environment, never from a URL"
            )
        return cls(scheme, path)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    def __truediv__(self, name: str) -> ObjectUrl:
        """What ``name``, a plain name, is below this one."""
        return ObjectUrl(self.scheme, f"{self.path}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> ObjectUrl:
        """Without its last part; a bucket is its own parent."""
        return ObjectUrl(self.scheme, self.path.rpartition("/")[0] or self.path)

    @property
    def bucket(self) -> str:
        """The first part."""
        return self.path.partition("/")[0]

    def is_in(self, root: ObjectUrl) -> bool:
        """Whether it is ``root``, or lies below it."""
        inside = self.path == root.path or self.path.startswith(f"{root.path}/")
        return self.scheme == root.scheme and inside
