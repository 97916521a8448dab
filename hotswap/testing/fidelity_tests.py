"""That a load strategy changes neither names nor bits: another part of its suite."""

from __future__ import annotations

from collections.abc import Callable
from unittest import SkipTest

import torch

from hotswap.seams import LoadStrategy
from hotswap.testing.delivered import differences
from hotswap.testing.delivery_tests import DeliveryTests
from hotswap.testing.findings import check, described, listed
from hotswap.testing.given import Publish
from hotswap.testing.odd_floats import nans, subnormals, zeros

__all__ = ["FidelityTests"]

_NAMES = (
    "module.layers.0.weight",
    "model.layers.1.weight",
    "model.model.layers.2.weight",
    "_orig_mod.layers.3.weight",
    "base_model.model.layers.4.weight",
    "transformer.layers.5.weight",
    "layers.6.LayerNorm.gamma",
    "Layers.7.Weight",
    "layers.8.weight.",
)
"""No two become one when what is usual is cut off or made small."""


class FidelityTests(DeliveryTests, suite=True):
    """Fixtures and settings are those of ``StrategyTests``."""

    def test_names_come_as_they_are(self, strategy: LoadStrategy, publish: Publish) -> None:
        """With ``module.``, ``model.`` and other prefixes, and with capitals."""
        first = self._dtypes()[0]
        weights = {name: torch.full((2,), at).to(first) for at, name in enumerate(_NAMES)}
        source = self._source(publish, weights)
        came, promised = self._arrived(strategy, source)
        lost = [name for name in _NAMES if name not in promised or name not in came]
        new = sorted((promised | came.keys()) - weights.keys())
        check(
            not lost,
            f"of the names {listed(lost)} is lost, and {listed(new) or 'nothing'} comes instead",
            todo="give names as they are stored: engines know which ones their weights have",
        )

    def test_zeros_keep_their_sign(self, strategy: LoadStrategy, publish: Publish) -> None:
        """``-0.0`` is not ``0.0``, in every dtype that has both."""
        self._check_floats(strategy, publish, zeros, "zeros with a sign")

    def test_nans_keep_their_bits(self, strategy: LoadStrategy, publish: Publish) -> None:
        """Sign and payload, quiet and signalling: weights may be packed into floats."""
        self._check_floats(strategy, publish, nans, "NaNs with a payload")

    def test_subnormal_numbers_are_kept(self, strategy: LoadStrategy, publish: Publish) -> None:
        """What is nearer to zero than any normal number is not made zero."""
        self._check_floats(strategy, publish, subnormals, "subnormal numbers")

    def _check_floats(
        self,
        strategy: LoadStrategy,
        publish: Publish,
        make: Callable[[torch.dtype], torch.Tensor],
        what: str,
    ) -> None:
        floats = [dtype for dtype in self._dtypes() if dtype.is_floating_point]
        if not floats:
            raise SkipTest("the source holds no floats")
        weights = {str(dtype).removeprefix("torch."): make(dtype) for dtype in floats}
        got = self._read(strategy, self._source(publish, weights))
        different = differences(got, weights)
        check(
            not different,
            f"{what} come with other bits: {described(different, got, weights)}",
            todo="copy bytes, and compute with nothing: no cast, no comparison with zero, no "
            "nan_to_num",
        )
