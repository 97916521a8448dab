"""The faults that depend on everything are put through everything, and will be.

Rule: nothing here lists a route, a pause mode or a choice of the settings. What is added to
one of them later and is in no test of a fault fails here.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
from starlette.routing import Route

from hotswap.http import Kind, create_app
from hotswap.http.routes import kind_of
from hotswap.plugins import load_plugins
from hotswap.settings import CHOICES, Settings
from hotswap.testing.fake_commands import FakeCommands
from hotswap.testing.scripted_engine import ScriptedEngine
from hotswap.types import PauseMode
from tests.process.served import FLAVOURS
from tests.process.test_faults_false_success import FAILING
from tests.process.update_routes import DRIVERS, MODES, ROUTES

pytestmark = pytest.mark.process

MODULES = [
    importlib.import_module(f"tests.process.test_faults_{name}")
    for name in ("cache", "false_success", "pauses", "slow")
]

# What each fault depends on. The one of aborts has its mode in its name.
FAULTS: Mapping[str, tuple[str, ...]] = {
    "a2": ("flavour", "mode", "route"),
    "a3": ("flavour", "mode", "route"),
    "a4": ("flavour", "mode", "route"),
    "a5": ("flavour", "mode", "route"),
    "a16": ("flavour", "mode", "route"),
    "a17": ("flavour", "mode", "route"),
    "a18": ("flavour", "mode", "route"),
    "a19": ("flavour", "how"),
    "a30": ("flavour", "mode", "route"),
}
AXES: Mapping[str, Iterable[object]] = {
    "flavour": FLAVOURS,
    "mode": MODES,
    "route": ROUTES,
    "how": ("pause", *ROUTES),
}
# Routes that no request of a test of A16 makes fail, and why.
NEVER_FAIL = {
    "/continue_generation": "the gate may be open already",
    "/get_weight_version": "says what the weights are called",
    "/weight_version": "the same",
    "/flush_cache": "fails beside a request that runs, which another test of A16 brings",
}


def rows_of(function: Callable[..., object], module: ModuleType) -> Iterator[dict[str, object]]:
    """The arguments of every test that pytest makes of ``function``."""
    on_module = getattr(module, "pytestmark", [])
    marks = [
        *getattr(function, "pytestmark", []),
        *(on_module if isinstance(on_module, list) else [on_module]),
    ]
    tables = [list(table_of(mark)) for mark in marks if mark.name == "parametrize"]
    for rows in itertools.product(*tables):
        yield {name: value for row in rows for name, value in row.items()}


def table_of(mark: Any) -> Iterator[dict[str, object]]:
    names = [name.strip() for name in mark.args[0].split(",")]
    for given in mark.args[1]:
        values = getattr(given, "values", given if len(names) > 1 else (given,))
        row = dict(zip(names, values, strict=True))
        yield {"flavour" if name == "server" else name: value for name, value in row.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_meets_every_mode_route_and_flavour(fault: str) -> None:
    axes = FAULTS[fault]
    wanted = set(itertools.product(*(AXES[axis] for axis in axes)))
    met = {
        tuple(row[axis] for axis in axes)
        for module in MODULES
        for name, function in vars(module).items()
        if name.startswith(f"test_{fault}_")
        for row in rows_of(function, module)
        if row.keys() >= set(axes)
    }
    assert not wanted - met, f"{fault} does not meet {sorted(map(str, wanted - met))}"


def test_every_choice_of_the_settings_and_every_mode_is_in_the_matrix() -> None:
    for name in ("dialect", "load_mode", "while_paused"):
        seen = {getattr(flavour, name) for flavour in FLAVOURS}
        assert seen == set(CHOICES[name]) - {"auto"}
    assert set(MODES) == set(PauseMode)
    assert set(ROUTES) == set(DRIVERS)


def test_every_route_that_may_fail_is_made_to_fail() -> None:
    app = create_app(FakeCommands(), ScriptedEngine(), Settings(), plugins=load_plugins())
    guarded = {
        route.path.partition("/{")[0]
        for route in app.routes
        # Those of OpenAI have an envelope, and tests, of their own.
        if isinstance(route, Route) and not route.path.startswith("/v1/")
        if kind_of(route) is not Kind.OPEN or route.path in NEVER_FAIL
    }
    made_to_fail = {failing.path.removesuffix("/nobody") for failing in FAILING}
    assert guarded - made_to_fail - {*DRIVERS} == set(NEVER_FAIL) - made_to_fail
