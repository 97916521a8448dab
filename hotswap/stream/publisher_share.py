"""Which rank writes which tensor, when several have it, or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hotswap.stream.errors import StreamError
from hotswap.stream.place import Place

__all__ = ["Told", "check_some", "given_owners", "whole_owners"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a rank says: checksums of the tensors that it was given, and what else it holds.

    ``changed``: whether each tensor that it was given did.
    """

    given: Mapping[str, str]
    changed: Mapping[str, bool]
    held: Sequence[str]


def given_owners(told: Sequence[Told]) -> dict[str, int]:
    """Tensor name -> the lowest rank that was given it.

    Raises: StreamError when two ranks were given different bytes of one name.
    """
    owner = dict[str, int]()
    for rank, one in enumerate(told):
        for name, checksum in one.given.items():
            first = owner.setdefault(name, rank)
            seen = told[first].given[name]
            if seen != checksum:
                raise StreamError(
                    f"tensor {name!r:.200} is not the same on rank {first} ({seen}) and on rank "
                    f"{rank} ({checksum}); give it on one of them, or bring them together"
                )
    return owner


def whole_owners(told: Sequence[Told], model: Iterable[str]) -> dict[str, int]:
    """Tensor name -> who writes it in a version that has all of ``model``.

    What nobody was given now is written by the lowest rank that holds it, and what nobody
    holds by rank 0, which reads it back from the stream.
    """
    owner = given_owners(told)
    for rank, one in enumerate(told):
        for name in one.held:
            owner.setdefault(name, rank)
    for name in model:
        owner.setdefault(name, 0)
    return owner


def check_some(given: Mapping[str, int], source: Place) -> None:
    """Raises: StreamError where nothing is ``given`` of a first version, by no rank."""
    if not given:
        raise StreamError(
            f"{source}: no tensor was given, wanted all of the model's: the first version is a "
            "checkpoint"
        )
