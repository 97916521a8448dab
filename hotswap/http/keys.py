"""Who may call which route: the keys of the server against those of a request.

======================  ==========  ==============  ===============
the server has          NORMAL      ADMIN_OPTIONAL  ADMIN_FORCE
======================  ==========  ==============  ===============
no key                  everybody   everybody       nobody (403)
the API key             API key     API key         nobody (403)
the admin key           everybody   admin key       admin key
both                    API key     admin key       admin key
======================  ==========  ==============  ===============

A key comes as ``Authorization: Bearer KEY`` or as ``X-GR-API-Key: KEY``. One that
comes more than once has to be right each time: a request that contradicts itself is
refused. ``Bearer None`` is what clients without a key send, and counts as no key;
so do other schemes, which are somebody else's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hotswap.api_keys import ApiKey
from hotswap.http.errors import Forbidden, Unauthorized
from hotswap.http.routes import Level

__all__ = ["Keys", "sent_keys"]

_NO_KEY = frozenset({b"", b"None"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of one server; None is a key that it does not ask for."""

    api: ApiKey | None = None
    admin: ApiKey | None = None

    def check(self, level: Level, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Return when a request with ``headers`` may use a route of ``level``.

        Raises: Unauthorized, Forbidden. Neither says anything of the route or the keys, but
        to who has the API key: that it is not the admin key.
        """
        wanted = self._wanted(level)
        if wanted is None:
            return
        sent = sent_keys(headers)
        right = _all_match(wanted, sent)
        right_for_others = self.api is not None and _all_match(self.api, sent)
        if not right:
            raise Unauthorized(wants_admin=right_for_others and wanted is self.admin)

    def _wanted(self, level: Level) -> ApiKey | None:
        """The key that ``level`` asks for; None asks for none. Raises: Forbidden."""
        if level is Level.NORMAL:
            return self.api
        if level is Level.ADMIN_OPTIONAL:
            return self.admin or self.api
        if self.admin is None:
            raise Forbidden
        return self.admin


def _all_match(wanted: ApiKey, sent: Sequence[bytes]) -> bool:
    """Whether there is a key at all, and each is the one."""
    # Every one is compared: how long it takes must not tell which was right.
    right = [wanted.matches(key) for key in sent]
    return bool(right) and all(right)


def sent_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Every key in raw ``headers`` (names in lower case), as the bytes that came."""
    found = [_key_of(name, value) for name, value in headers]
    return [key for key in found if key not in _NO_KEY]


def _key_of(name: bytes, value: bytes) -> bytes:
    if name == b"x-gr-api-key":
        return value.strip()
    if name == b"authorization":
        scheme, _, key = value.strip().replace(b"\t", b" ").partition(b" ")
        if scheme.lower() == b"bearer":
            return key.strip()
    return b""
