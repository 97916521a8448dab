"""What an engine says that it holds, and which updates it takes: the first part of its suite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import torch

from hotswap.errors import UpdateRejected
from hotswap.seams import Engine
from hotswap.testing.delivered import copies, differences
from hotswap.testing.findings import check, described, listed, wrong_specs
from hotswap.testing.given import EngineFactory, LiveWeights, engine_made, live_weights
from hotswap.testing.suites import Suite
from hotswap.types import Manifest, Scope, TensorSpec

__all__ = ["EnginePlanTests"]

_IN_PLAN = "check it in plan(), and raise UpdateRejected: nothing is written yet"


class EnginePlanTests(Suite, suite=True):
    """Fixtures and settings are those of ``EngineTests``."""

    def test_the_manifest_names_every_live_weight(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """Neither more nor less than a full update has to bring."""

        async def names() -> tuple[set[str], set[str]]:
            async with self._engine(engine) as running:
                return set(running.manifest().names), set(live_weights(live, running))

        promised, there = self.run(names)
        check(
            promised >= there,
            f"the manifest lacks {listed(sorted(there - promised))}, which is live",
            todo="name everything that a full update has to bring, buffers too",
        )
        check(
            promised <= there,
            f"the manifest names {listed(sorted(promised - there))}, which the fixture live does "
            "not show",
            todo="name what is live under its checkpoint name, or let the fixture show it",
        )

    def test_the_manifest_has_the_live_shapes_and_dtypes(
        self, engine: EngineFactory, live: LiveWeights
    ) -> None:
        """Staging holds what they say."""

        async def wrong() -> list[str]:
            async with self._engine(engine) as running:
                return wrong_specs(running.manifest().tensors, live_weights(live, running))

        found = self.run(wrong)
        check(
            not found,
            f"the manifest says {listed(found)}",
            todo="take shape and dtype from the live tensor",
        )

    def test_its_own_manifest_is_a_full_update(self, engine: EngineFactory) -> None:
        """Nothing missing, nothing unknown, a place for every name."""

        async def planned() -> list[str]:
            async with self._engine(engine) as running:
                manifest = running.manifest()
                plan = running.plan(manifest, Scope.FULL)
                found = [
                    f"{name} has no place" for name in manifest.names if name not in plan.specs
                ]
                found += [f"{name} is planned" for name in plan.specs if name not in manifest]
                found += [f"{name} is told as missing" for name in plan.missing]
                return found + [f"{name} is told as unknown" for name in plan.unknown]

        found = self.run(planned)
        check(
            not found,
            f"its own manifest, planned as a full update: {listed(found)}",
            todo="let plan() and manifest() name the same weights",
        )

    def test_an_unknown_name_is_rejected(self, engine: EngineFactory) -> None:
        """A name that no live weight has, in either scope."""
        stranger = TensorSpec(name="hotswap.stranger", dtype=torch.float32, shape=(2,))
        for scope in Scope:
            self._check_rejected(
                engine, lambda specs: [*specs, stranger], scope=scope, what=f"with {stranger}"
            )

    def test_a_missing_name_is_rejected(self, engine: EngineFactory) -> None:
        """A full update brings everything."""
        self._check_rejected(
            engine, lambda specs: specs[1:], scope=Scope.FULL, what="without the first name"
        )

    def test_a_wrong_shape_is_rejected(self, engine: EngineFactory) -> None:
        """One dimension more, in either scope."""
        for scope in Scope:
            self._check_rejected(
                engine,
                lambda specs: [replace(specs[0], shape=(7, *specs[0].shape)), *specs[1:]],
                scope=scope,
                what="with one dimension more in the first tensor",
            )

    def test_a_wrong_dtype_is_rejected(self, engine: EngineFactory) -> None:
        """Complex numbers where the model has none."""
        for scope in Scope:
            self._check_rejected(
                engine,
                lambda specs: [replace(specs[0], dtype=torch.complex64), *specs[1:]],
                scope=scope,
                what="with complex numbers in the first tensor",
            )

    def test_a_part_is_planned_as_a_part(self, engine: EngineFactory) -> None:
        """One name is planned, and all others are told as missing."""

        async def planned() -> list[str]:
            async with self._engine(engine) as running:
                first, *others = running.manifest().tensors
                plan = running.plan(Manifest.of([first]), Scope.PARTIAL)
                found = [f"{name} is planned" for name in plan.specs if name != first.name]
                found += [] if first.name in plan.specs else [f"{first.name} has no place"]
                lacking = {spec.name for spec in others}
                found += [f"{name} is not told" for name in sorted(lacking - set(plan.missing))]
                return found + [f"{name} is told" for name in sorted(set(plan.missing) - lacking)]

        found = self.run(planned)
        check(
            not found,
            f"a part with one name, of those planned and those told as missing: {listed(found)}",
            todo="plan what the manifest names, and tell every other live name in missing",
        )

    def test_planning_writes_nothing(self, engine: EngineFactory, live: LiveWeights) -> None:
        """Requests are served meanwhile."""

        async def planned() -> str:
            async with self._engine(engine) as running:
                before = copies(live_weights(live, running))
                running.plan(running.manifest(), Scope.FULL)
                after = live_weights(live, running)
                return described(differences(after, before), after, before)

        changed = self.run(planned)
        check(
            not changed,
            f"plan() has changed live weights: {changed}",
            todo="write in write() alone: requests are served while an update is planned",
        )

    # --- how

    def _engine(self, engine: EngineFactory) -> AbstractAsyncContextManager[Engine]:
        return engine_made(engine)

    def _check_rejected(
        self,
        engine: EngineFactory,
        change: Callable[[list[TensorSpec]], list[TensorSpec]],
        *,
        scope: Scope,
        what: str,
    ) -> None:
        async def rejected() -> bool:
            async with self._engine(engine) as running:
                specs = change(list(running.manifest().tensors))
                try:
                    running.plan(Manifest.of(specs), scope)
                except UpdateRejected:
                    return True
                return False

        check(self.run(rejected), f"a {scope} update {what} was planned", todo=_IN_PLAN)
