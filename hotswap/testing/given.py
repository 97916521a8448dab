"""What the fixtures of a suite give, looked at before it is used.

A fixture that is wrong would look like a fault of the plug-in, in some test or other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch

from hotswap.seams import Engine
from hotswap.testing.findings import listed, on_one_line
from hotswap.weights.pieces import spec_of

__all__ = [
    "EngineFactory",
    "LiveWeights",
    "Publish",
    "WrongFixture",
    "engine_made",
    "live_weights",
    "missing_fixture",
    "published",
    "wanted_fixture",
    "with_method",
]

Publish: TypeAlias = Callable[[Mapping[str, torch.Tensor]], str]
"""Puts tensors where the strategy reads them, each time in another place; the source."""

EngineFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[Engine]]
"""Makes an engine that runs while the context is open; each time another, with equal weights."""

LiveWeights: TypeAlias = Callable[[Any], Mapping[str, torch.Tensor]]
"""The live memory of an engine by checkpoint names: views of it, and no copies."""

_WANTED = {
    "strategy": "gives a new load strategy, an object with open(update, placement)",
    "publish": "gives a function that takes tensors by their names, writes them where the "
    "strategy reads them, and returns the source as a text",
    "engine": "gives a function that makes an engine, as an asynchronous context manager that "
    "runs it",
    "live": "gives a function that takes the engine and returns its live tensors by checkpoint "
    "names",
    "pre_read": "gives the plug-in's hotswap_pre_read",
    "hide": "gives a function that makes a hotswap.testing.Hidden: a source that only the hook "
    "makes readable",
}


class WrongFixture(Exception):
    """A fixture or a setting is not what its suite wants; no fault of the plug-in was found."""


def missing_fixture(name: str, *, suite: str) -> WrongFixture:
    """For a fixture that the author of a test class has forgotten."""
    does = _WANTED.get(name, "gives what the test takes under that name")
    return WrongFixture(
        f"{suite} wants the fixture {name} and the class has none; write a method {name}(self) "
        f"with @pytest.fixture above it that {does}"
    )


def wanted_fixture(name: str, *, suite: str) -> object:
    """The fixture of a suite that no class has overridden: one of a module or a conftest, else
    a sentence that asks for it. None without pytest."""
    if find_spec("pytest") is None:
        return None
    import pytest

    @pytest.fixture(name=name)
    def look_outside(self: object, request: pytest.FixtureRequest) -> Any:
        __tracebackhide__ = True
        try:
            return request.getfixturevalue(name)
        except pytest.FixtureLookupError as error:
            if error.argname != name:
                raise
        raise missing_fixture(name, suite=suite)

    return look_outside


def with_method(given: object, method: str, *, fixture: str) -> None:
    """Raises: WrongFixture unless ``given``, of the fixture named so, has ``method``."""
    if isinstance(given, type):
        raise WrongFixture(
            f"the fixture {fixture} gave the class {given.__name__}, wanted an object of it; "
            f"return {given.__name__}()"
        )
    if not callable(getattr(given, method, None)):
        raise WrongFixture(
            f"the fixture {fixture} gave {given!r}, which has no {method}; write one that "
            f"{_WANTED[fixture]}"
        )


def published(
    publish: Callable[[Mapping[str, torch.Tensor]], object],
    tensors: Mapping[str, torch.Tensor],
    *,
    earlier: list[str],
) -> str:
    """Call the fixture ``publish``; the source, which is noted in ``earlier`` too.

    Raises: WrongFixture when it cannot write the tensors, returns no text, or returns a source
    for the second time.
    """
    if not callable(publish):
        raise WrongFixture(
            f"the fixture publish gave {publish!r}, wanted one that {_WANTED['publish']}"
        )
    try:
        source = publish(tensors)
    except Exception as error:
        raise WrongFixture(_cannot_publish(publish, tensors, error)) from error
    if not isinstance(source, str) or not source:
        raise WrongFixture(
            f"publish(tensors) returned {source!r}, wanted the source as a text, as the source of "
            "an update has it; return str(path)"
        )
    if source in earlier:
        raise WrongFixture(
            f"publish(tensors) returned {source!r} for the second time, wanted another place for "
            "each call; count the calls in the fixture"
        )
    earlier.append(source)
    return source


def _cannot_publish(
    publish: Callable[[Mapping[str, torch.Tensor]], object],
    tensors: Mapping[str, torch.Tensor],
    error: Exception,
) -> str:
    refused = [name for name, tensor in tensors.items() if not _can(publish, name, tensor)]
    taken = {tensors[name].dtype: None for name in tensors if name not in refused}
    dtypes = {tensors[name].dtype: None for name in refused if tensors[name].dtype not in taken}
    seen = f"the fixture publish raised {on_one_line(error)}"
    if dtypes and taken:
        kept = ", ".join(map(str, taken)) + ("," if len(taken) == 1 else "")
        return (
            f"{seen}, and it does so for every tensor of {listed(dtypes)}; if the source cannot "
            "hold these, say in the class which dtypes it can hold: "
            f"dtypes = ({kept})"
        )
    if refused and taken:
        shapes = listed(spec_of(name, tensors[name]) for name in refused)
        return (
            f"{seen}, and it does so for {shapes}; if the source cannot hold these, leave the test "
            'out with a reason: NAME_OF_THE_TEST = hotswap.testing.leave_out("why")'
        )
    return f"{seen}; put it right: one that {_WANTED['publish']}"


def _can(
    publish: Callable[[Mapping[str, torch.Tensor]], object], name: str, tensor: torch.Tensor
) -> bool:
    try:
        publish({name: tensor})
    except Exception:
        return False
    return True


def engine_made(engine: EngineFactory) -> AbstractAsyncContextManager[Engine]:
    """A new engine of the fixture ``engine``, not running yet. Raises: WrongFixture."""
    made: object = engine() if callable(engine) else engine
    if not callable(engine) or not isinstance(made, AbstractAsyncContextManager):
        raise WrongFixture(
            f"the fixture engine is wrong: {'engine() made' if callable(engine) else 'it gave'} "
            f"{made!r}, wanted one that {_WANTED['engine']}"
        )
    return made


def live_weights(live: LiveWeights, running: Engine) -> Mapping[str, torch.Tensor]:
    """What the fixture ``live`` shows. Raises: WrongFixture."""
    shown: object = live(running) if callable(live) else live
    if isinstance(shown, Mapping) and all(isinstance(one, torch.Tensor) for one in shown.values()):
        return shown
    raise WrongFixture(
        f"the fixture live shows a {type(shown).__name__}, wanted one that {_WANTED['live']}, "
        "as views and no copies"
    )
