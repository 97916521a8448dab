"""What the names of a checkpoint mean to transformers, which renames and stacks on load.

Rules:

* transformers' own table and functions say what a name becomes; nothing is guessed.
* A tensor that becomes rows of a live one has a place. One that would have to be cut,
  permuted or computed with has none, and is refused by name.
* The number in a name is its place in a stack: a part of a checkpoint says where it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    apply_renamings,
    rename_source_key,
)

from hotswap.errors import UpdateRejected
from hotswap.types import Manifest
from hotswap.weights.mapping import Place
from hotswap.weights.plan import listing

__all__ = ["TransformersNaming"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    """A name after transformers' renaming: a live tensor, and how it becomes part of it.

    ``key`` is the name before its converter (None: it has none) took ``pattern`` in it.
    """

    live: str
    key: str = ""
    pattern: str = ""
    converter: Any = None


class TransformersNaming:
    """Satisfies ``CheckpointNaming`` for one model, as its first checkpoint names it.

    Raises: UpdateRejected naming what no place can be found for.
    """

    def __init__(self, model: Any, manifest: Manifest) -> None:
        self._model = model
        self._live = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self._ignored = _ignored(model)
        self._rows: dict[tuple[str, str], int] = {}
        # An update mostly has the names of the first one, and patterns take their time.
        self._known = self._meanings(manifest.names)
        for name, meaning in self._known.items():
            shape = manifest[name].shape
            if meaning.converter is not None and shape:
                self._rows.setdefault((meaning.live, meaning.pattern), shape[0])
        self._usual = self.find(manifest.names)

    def __repr__(self) -> str:
        return f"<TransformersNaming {type(self._model).__name__} {len(self._usual)} renamed>"

    @property
    def usual(self) -> Mapping[str, Place]:
        """The names of the first checkpoint that are not the live ones."""
        return self._usual

    def find(self, names: Iterable[str]) -> Mapping[str, Place]:
        """See ``CheckpointNaming.find``. Raises: UpdateRejected."""
        found: dict[str, Place] = {}
        refused: list[str] = []
        asked = tuple(names)
        meanings = {name: self._known[name] for name in asked if name in self._known}
        meanings |= self._meanings(name for name in asked if name not in self._known)
        for name, meaning in meanings.items():
            if meaning.converter is None:
                if meaning.live != name:
                    found[name] = Place(live=meaning.live)
                continue
            place = self._part(meaning)
            if place is None:
                refused.append(f"{name} ({meaning.converter.operations}, for {meaning.live})")
            else:
                found[name] = place
        if refused:
            raise UpdateRejected(
                "transformers converts tensors of this checkpoint while it loads them, and what "
                f"it makes of them cannot be written in place; {listing('such', refused)}; send "
                "them as the live model has them, under its names"
            )
        return found

    def ignores(self, name: str) -> bool:
        """Whether transformers leaves the name out without a word."""
        if self._ignored is None:
            return False
        meaning = self._meanings([name]).get(name)
        return self._ignored.search(name if meaning is None else meaning.live) is not None

    def _meanings(self, names: Iterable[str]) -> dict[str, _Meaning]:
        """What becomes of each name that ends at a live tensor."""
        # Made anew each time: entries of the table remember what they have matched.
        table = get_model_conversion_mapping(self._model)
        renamings: list[Any] = [entry for entry in table if isinstance(entry, WeightRenaming)]
        converters: list[Any] = [entry for entry in table if isinstance(entry, WeightConverter)]
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        prefix = self._model.base_model_prefix
        found: dict[str, _Meaning] = {}
        for name in names:
            live, pattern = rename_source_key(name, renamings, converters, prefix, self._live)
            if live not in self._live and name in self._live:
                live, pattern = rename_source_key(name, [], [], prefix, self._live)
            if live not in self._live:
                continue
            if pattern is None:
                found[name] = _Meaning(live=live)
                continue
            found[name] = _Meaning(
                live=live,
                key=apply_renamings(name, renamings),
                pattern=pattern,
                converter=by_pattern[pattern],
            )
        return found

    def _part(self, meaning: _Meaning) -> Place | None:
        """The rows that a converted tensor becomes; None when it becomes none."""
        shape, converter = self._live[meaning.live], meaning.converter
        depth = _depth(converter)
        if depth is None or len(shape) < depth:
            return None
        rows = shape[depth - 1]
        sizes = self._sizes(meaning, rows)
        number = _number(meaning) if depth == 2 else 0
        if sizes is None or number is None or (depth == 2 and number >= shape[0]):
            return None
        at = converter.source_patterns.index(meaning.pattern)
        start = number * rows + sum(sizes[:at])
        return Place(live=meaning.live, start=start, stop=start + sizes[at], depth=depth)

    def _sizes(self, meaning: _Meaning, rows: int) -> list[int] | None:
        """Rows of each source that is laid beside the others: as first seen, or equal shares."""
        patterns = meaning.converter.source_patterns
        seen = [self._rows.get((meaning.live, pattern)) for pattern in patterns]
        known = [size for size in seen if size is not None]
        if len(known) == len(patterns) and sum(known) == rows:
            return known
        share, rest = divmod(rows, len(patterns))
        return None if rest else [share] * len(patterns)


def _depth(converter: Any) -> int | None:
    """Leading dimensions that are one for its sources to be rows; None where they are none."""
    if len(converter.target_patterns) > 1:
        return None
    match [(type(step), getattr(step, "dim", None)) for step in converter.operations]:
        case [(kind, 0)] if kind is MergeModulelist and len(converter.source_patterns) == 1:
            return 2
        case [(first, 0), (second, 1)] if first is MergeModulelist and second is Concatenate:
            return 2
        case [(kind, 0)] if kind is Concatenate and not any(
            "*" in pattern for pattern in converter.source_patterns
        ):
            return 1
    return None


def _number(meaning: _Meaning) -> int | None:
    """Which of the stacked tensors it is."""
    numbered = re.search(meaning.pattern.replace("*.", r"(\d+)\."), meaning.key)
    return None if numbered is None or "*" not in meaning.pattern else int(numbered[1])


def _ignored(model: Any) -> re.Pattern[str] | None:
    """Names that a checkpoint may have besides; what transformers itself adds included."""
    patterns = set(model._keys_to_ignore_on_load_unexpected or ())
    buffers = [name for name, _ in model.named_buffers()]
    if any(name.endswith("rotary_emb.inv_freq") for name in buffers):
        patterns.add(r"rotary_emb\.inv_freq")
    if any(name.endswith("position_ids") for name in buffers):
        patterns.add(r"(^|\.)position_ids$")
    return (
        re.compile("|".join(f"({pattern})" for pattern in sorted(patterns))) if patterns else None
    )
