"""Rope parameters of a ``config.json``, in the spelling of transformers 4 or 5.

Transformers 4 wrote ``rope_theta`` beside ``rope_scaling`` (with ``type`` or
``rope_type``); transformers 5 writes one ``rope_parameters``. Both come out the
same here; of two that are written, ``rope_scaling`` is the one that counts, and all
of it. Defaults are those of transformers 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hotswap.engine.config_fields import Fields

__all__ = ["RopeParameters", "RopeType", "parse_rope"]

_DEFAULT_THETA = 10000.0


class RopeType(StrEnum):
    """The ways of scaling rotary embeddings that the engine knows."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """Everything that the rotary embedding reads; unused fields keep their defaults.

    ``original_positions`` is the context that the model was trained with,
    ``attention_factor`` multiplies cos and sin.
    """

    rope_type: RopeType = RopeType.DEFAULT
    rope_theta: float = _DEFAULT_THETA
    factor: float = 1.0
    original_positions: int = 0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def changes_past(self) -> int | None:
        """Length past which frequencies depend on the length of the text; None: never."""
        depends = self.rope_type in (RopeType.DYNAMIC, RopeType.LONGROPE)
        return self.original_positions if depends else None

    def reach(self, max_positions: int) -> int:
        """Longest text, prompt and output together, that the parameters are made for."""
        if self.rope_type in (RopeType.LINEAR, RopeType.DYNAMIC):
            return int(max_positions * self.factor)
        if self.rope_type is RopeType.YARN:
            return max(max_positions, int(self.original_positions * self.factor))
        return max_positions


def parse_rope(
    config: Mapping[str, object], *, max_positions: int, head_dim: int
) -> RopeParameters:
    """Read the rope parameters of ``config``.

    Raises: ValueError for an unknown type, a partial rotation, and for fields
    that are missing or of the wrong kind.
    """
    written = _written(config)
    fields = Fields(written, "rope parameters")
    outer = Fields(config).number("rope_theta", _DEFAULT_THETA, above=0)
    theta = fields.number("rope_theta", outer, above=0)
    partial = fields.number("partial_rotary_factor", 1.0)
    if Fields(config).number("partial_rotary_factor", partial) != 1.0 or partial != 1.0:
        raise ValueError("partial_rotary_factor other than 1 is not supported by this engine")
    rope_type = _rope_type(written)
    if rope_type is RopeType.DEFAULT:
        return RopeParameters(rope_theta=theta)
    original = _original_positions(config, fields, rope_type=rope_type, max_positions=max_positions)
    return _PARSERS[rope_type](
        _Scaled(fields=fields, theta=theta, original=original, max_positions=max_positions),
        head_dim,
    )


def _written(config: Mapping[str, object]) -> Mapping[str, object]:
    written = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(written, Mapping):
        raise ValueError(f"config.json has rope parameters {written!r}, wanted an object")
    nested = [
        name
        for name, value in written.items()
        if isinstance(value, Mapping) or name.endswith("_attention")
    ]
    if nested:
        # Of these architectures transformers ignores them, or fails on them.
        raise ValueError(
            f"config.json has rope parameters for {nested} each, wanted the same for every layer"
        )
    return written


def _rope_type(written: Mapping[str, object]) -> RopeType:
    name = written.get("rope_type", written.get("type", "default"))
    try:
        return RopeType(str(name))
    except ValueError:
        wanted = ", ".join(RopeType)
        raise ValueError(f"rope type {name!r} is not supported, wanted one of {wanted}") from None


def _original_positions(
    config: Mapping[str, object], fields: Fields, *, rope_type: RopeType, max_positions: int
) -> int:
    if rope_type in (RopeType.LINEAR, RopeType.DYNAMIC):
        return max_positions
    own = fields.count("original_max_position_embeddings", max_positions)
    return Fields(config).count("original_max_position_embeddings", own)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaled:
    """What every scaled type starts from."""

    fields: Fields
    theta: float
    original: int
    max_positions: int

    def factor_or_ratio(self) -> float:
        """``factor``, or how far the context was stretched where it is not given."""
        ratio = self.max_positions / self.original
        return ratio if self.fields.is_absent("factor") else self.factor()

    def factor(self) -> float:
        """How far the context is stretched."""
        return self.fields.number("factor", least=1)


def _linear(scaled: _Scaled, _head_dim: int) -> RopeParameters:
    return RopeParameters(
        rope_type=RopeType.LINEAR, rope_theta=scaled.theta, factor=scaled.factor()
    )


def _dynamic(scaled: _Scaled, head_dim: int) -> RopeParameters:
    if head_dim < 4:
        raise ValueError(f"config.json: head_dim is {head_dim}, wanted 4 or more for dynamic rope")
    return RopeParameters(
        rope_type=RopeType.DYNAMIC,
        rope_theta=scaled.theta,
        factor=scaled.factor(),
        original_positions=scaled.original,
    )


def _llama3(scaled: _Scaled, _head_dim: int) -> RopeParameters:
    low = scaled.fields.number("low_freq_factor", above=0)
    return RopeParameters(
        rope_type=RopeType.LLAMA3,
        rope_theta=scaled.theta,
        factor=scaled.factor(),
        original_positions=scaled.original,
        low_freq_factor=low,
        high_freq_factor=scaled.fields.number("high_freq_factor", above=low),
    )


def _yarn(scaled: _Scaled, _head_dim: int) -> RopeParameters:
    fields, factor = scaled.fields, scaled.factor_or_ratio()
    if scaled.theta <= 1:
        raise ValueError(f"rope parameters: rope_theta is {scaled.theta}, wanted above 1 for yarn")
    mscale, all_dim = (fields.number(name, 0.0, least=0) for name in ("mscale", "mscale_all_dim"))
    if mscale and all_dim:
        inferred = _yarn_scale(factor, mscale) / _yarn_scale(factor, all_dim)
    else:
        inferred = _yarn_scale(factor, 1.0)
    return RopeParameters(
        rope_type=RopeType.YARN,
        rope_theta=scaled.theta,
        factor=factor,
        original_positions=scaled.original,
        attention_factor=fields.number("attention_factor", inferred, above=0),
        # Zero is as good as absent, to transformers too.
        beta_fast=fields.number("beta_fast", 32.0, least=0) or 32.0,
        beta_slow=fields.number("beta_slow", 1.0, least=0) or 1.0,
        truncate=fields.flag("truncate", True),
    )


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(scaled: _Scaled, head_dim: int) -> RopeParameters:
    fields, factor = scaled.fields, scaled.factor_or_ratio()
    if scaled.original < 2:
        raise ValueError(
            f"rope parameters: original_max_position_embeddings is {scaled.original}, "
            "wanted 2 or more for longrope"
        )
    inferred = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(scaled.original))
    return RopeParameters(
        rope_type=RopeType.LONGROPE,
        rope_theta=scaled.theta,
        factor=factor,
        original_positions=scaled.original,
        attention_factor=fields.number("attention_factor", inferred, above=0),
        short_factor=fields.numbers("short_factor", head_dim // 2),
        long_factor=fields.numbers("long_factor", head_dim // 2),
    )


_PARSERS: Mapping[RopeType, Callable[[_Scaled, int], RopeParameters]] = {
    RopeType.LINEAR: _linear,
    RopeType.DYNAMIC: _dynamic,
    RopeType.LLAMA3: _llama3,
    RopeType.YARN: _yarn,
    RopeType.LONGROPE: _longrope,
}
