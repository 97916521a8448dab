"""The three checksums, as their own packages compute them."""

from __future__ import annotations

import importlib
import zlib
from types import ModuleType

import blake3
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hotswap.stream import UnknownEncoding
from hotswap.stream.checksums import CHECKSUMS, checksum, is_checksum, new_hasher


@settings(deadline=None, max_examples=40)
@given(st.lists(st.binary(max_size=50), max_size=4))
def test_piece_by_piece_is_at_once(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert checksum("xxh3-128", memoryview(whole)) == xxhash.xxh3_128_hexdigest(whole)
    assert checksum("blake3", memoryview(whole)) == blake3.blake3(whole).hexdigest()
    assert checksum("adler32", memoryview(whole)) == f"{zlib.adler32(whole):08x}"
    for name in CHECKSUMS:
        hasher = new_hasher(name)
        for piece in pieces:
            hasher.update(memoryview(piece))
        assert hasher.hexdigest() == checksum(name, memoryview(whole))
        assert is_checksum(name, hasher.hexdigest())


def test_adler32_starts_at_one_and_keeps_its_zeros() -> None:
    assert checksum("adler32", memoryview(b"")) == "00000001"


@pytest.mark.parametrize("text", ["", "00", "0000000G", "0000000A", "000000001", "00000001\n"])
def test_what_has_another_form_is_none(text: str) -> None:
    assert not is_checksum("adler32", text)


def test_another_checksum_is_named() -> None:
    with pytest.raises(UnknownEncoding, match="'md5', wanted one of xxh3-128, blake3, adler32"):
        new_hasher("md5")


def test_without_blake3_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UnknownEncoding, match=r"pip install 'hotswap\[blake3\]'"):
        new_hasher("blake3")
