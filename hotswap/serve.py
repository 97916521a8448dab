"""Serve one engine over HTTP in this process until it is told to stop.

Order: take the port, load the model, rehearse an update, serve. A shutdown goes back the same way:
no new request, requests in flight end with ``abort``, the server closes, the
engine's thread ends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from pathlib import Path
from typing import Any, cast

import anyio
import hypercorn.asyncio
from hypercorn.typing import Framework
from hypercorn.utils import LifespanFailureError
from starlette.applications import Starlette

from hotswap.controller import Controller
from hotswap.descriptors import raise_limit
from hotswap.engine import EmbeddedEngine
from hotswap.engine.loading import choose_device
from hotswap.errors import HotswapError
from hotswap.follow import Follower
from hotswap.follow.start import FollowSetup
from hotswap.foreign import contained
from hotswap.http.app import create_app
from hotswap.http.dialect import dialect_of, paused_policy
from hotswap.http.served import Served
from hotswap.listening import ListeningConfig, is_told
from hotswap.logs import configure_logs, tell_of_server
from hotswap.loop_end import run_loop
from hotswap.loops_at_start import load_loops
from hotswap.plugin_hooks import with_options
from hotswap.plugins import (
    EMBEDDED,
    Plugins,
    missing_strategy_message,
    resolve_engine,
    resolve_strategies,
)
from hotswap.pulls import Puller
from hotswap.rehearsal import keep_out_of_collections, rehearse
from hotswap.seams import Engine, LoadStrategy
from hotswap.settings import Settings, SettingsError, model_directory
from hotswap.sparse import Base
from hotswap.stop_signals import StopSignals, end_for_certain
from hotswap.stream.plain_reading import has_log
from hotswap.types import PauseMode, WeightStamp
from hotswap.uninterrupted import on_worker_thread

__all__ = ["StartError", "run", "take_port"]

_log = logging.getLogger("hotswap.serve")

_USUAL_STRATEGY = "disk"

_FLUSH_S = 1.0
"""How long replies may take to leave, past the time that requests get to end."""

_THREADS_S = 2.0
"""How long threads may take to end, past that again."""


class StartError(Exception):
    """The server cannot start; the message says why in one line.

    ``exit_code`` is 2 when what it was told is wrong: a setting whose value is none, or
    that names what there is not. It is 1 when that could stand, and the start failed at it.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(settings: Settings, plugins: Plugins) -> None:
    """Serve until SIGTERM or SIGINT. Raises: StartError."""
    model = _checkpoint(settings)
    configure_logs(level=settings.log_level, style=settings.log_format)
    # Where the server is to be found is said at every log level: --port 0 needs it.
    _log.setLevel(logging.INFO)
    raise_limit()
    with take_port(settings.host, settings.port) as taken:
        run_loop(_serve(settings, plugins, model, taken))


def take_port(host: str, port: int) -> socket.socket:
    """Bind a listening address before the slow work. Raises: StartError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except (OSError, ValueError, TypeError) as error:
        # The last two: of a host that no name can be made of.
        taken.close()
        said = f"cannot listen on {host}:{port}: {_reason(error)}"
        raise StartError(said, exit_code=2 if _is_no_address(error) else 1) from error
    return taken


def _is_no_address(error: Exception) -> bool:
    """Whether the host itself is wrong: no name, or one that nothing here has."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    return not isinstance(error, OSError) or error.errno == errno.EADDRNOTAVAIL


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    seen = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return f"{seen}; choose another with --port, or --port 0 for any that is free"
    return seen


def _checkpoint(settings: Settings) -> Path:
    try:
        model = model_directory(settings)
    except SettingsError as error:
        raise StartError(str(error), exit_code=2) from error
    if has_log(model):
        # Its files are a version before the one that it holds.
        raise StartError(
            f"--model {model} is a local checkpoint with versions beside its files, wanted plain "
            f"files: hotswap materialize {model}",
            exit_code=2,
        )
    return model


async def _serve(settings: Settings, plugins: Plugins, model: Path, taken: socket.socket) -> None:
    # First: what is wrong with its options is not said in the words of a plug-in that pulls too.
    puller = _puller(settings, plugins)
    follows = _follows(settings)
    strategies = _strategies(settings, plugins, follows)
    stamp = WeightStamp(version=dialect_of(settings).boot_version)
    async with _engine(settings, plugins, model, stamp) as engine:
        if isinstance(engine, EmbeddedEngine):
            # It loads through the same door as an update.
            engine.origin = _base(puller)
        controller = Controller(
            engine,
            strategies=strategies,
            pre_read=with_options(plugins.pre_read, settings.option_values),
            changed=plugins.changed,
            stamp=stamp,
            while_paused=paused_policy(settings),
            hold_s=settings.hold_s,
            session_timeout_s=settings.session_timeout_s,
        )
        async with controller:
            follower = _follower(follows, controller, puller, plugins)
            app = create_app(
                controller,
                engine,
                settings,
                plugins=plugins,
                puller=puller,
                follower=follower,
                strategies=strategies,
            )
            tell_of_server(
                lambda: {
                    "state": controller.machine.state,
                    "weight_epoch": controller.stamp.epoch,
                }
            )
            await rehearse(engine, strategies, model)
            if settings.allow_weight_update:
                sizes = [spec.size_bytes for spec in engine.manifest().tensors]
                await on_worker_thread(load_loops, sizes)
            keep_out_of_collections()
            async with follower or nullcontext():
                await _listen(app, controller, settings, taken)


def _follows(settings: Settings) -> FollowSetup | None:
    try:
        return FollowSetup.of(settings.option_values)
    except ValueError as error:
        raise StartError(f"--{error}", exit_code=2) from error
    except HotswapError as error:
        # It speaks of the source, and not of an option.
        raise StartError(f"--follow: {error}", exit_code=2) from error
    except OSError as error:
        raise StartError(f"--follow-local: {error}", exit_code=2) from error


def _follower(
    follows: FollowSetup | None, controller: Controller, puller: Puller, plugins: Plugins
) -> Follower | None:
    if follows is None:
        return None
    return follows.follower(controller, base=puller.base, hooks=plugins.pre_read)


def _strategies(
    settings: Settings, plugins: Plugins, follows: FollowSetup | None
) -> Mapping[str, LoadStrategy]:
    values = settings.option_values if follows is None else follows.strategy_values
    try:
        strategies = resolve_strategies(plugins, values)
        if follows is not None:
            strategies = follows.strategies(strategies)
    except HotswapError as error:
        raise _factory_failed(error) from error
    # Without hotswap-disk a server serves all the same, and an update says what to install.
    if settings.load_strategy not in {*strategies, _USUAL_STRATEGY}:
        raise StartError(
            f"--load-strategy: {missing_strategy_message(settings.load_strategy, plugins)}",
            exit_code=2,
        )
    return strategies


def _factory_failed(error: HotswapError) -> StartError:
    """ValueError is how a factory refuses the value of an option."""
    return StartError(str(error), exit_code=2 if isinstance(error.__cause__, ValueError) else 1)


def _puller(settings: Settings, plugins: Plugins) -> Puller:
    """Made before the model is loaded: its directory is recorded as it is loaded from."""
    try:
        return Puller.from_options(settings.option_values, hooks=plugins.pre_read)
    except ValueError as error:
        raise StartError(f"--{error}", exit_code=2) from error


def _base(puller: Puller) -> Base | None:
    recorded = puller.base
    if recorded is None or recorded.digest is None:
        return None
    return Base(path=str(recorded.path), digest=recorded.digest)


def _engine(
    settings: Settings, plugins: Plugins, model: Path, stamp: WeightStamp
) -> AbstractAsyncContextManager[Engine]:
    if settings.engine == EMBEDDED:
        _check_device(settings)
        _log.info("loading %s", model)
        return _embedded(settings, model, stamp)
    try:
        engine = resolve_engine(plugins, settings.engine, settings.option_values)
    except HotswapError as error:
        if settings.engine not in plugins.engines:
            raise StartError(f"--engine: {error}", exit_code=2) from error
        raise _factory_failed(error) from error
    _log.info("loading %s", model)
    return _brought(engine, model, stamp)


def _check_device(settings: Settings) -> None:
    try:
        choose_device(settings.device)
    except ValueError as error:
        raise StartError(f"--device: {error}", exit_code=2) from error


@asynccontextmanager
async def _brought(
    context: AbstractAsyncContextManager[Engine], model: Path, stamp: WeightStamp
) -> AsyncIterator[Engine]:
    """An engine of a plug-in, under the version that the server boots with."""
    async with AsyncExitStack() as running:
        with _load_errors(model), contained("the engine"):
            engine = await running.enter_async_context(context)
        await engine.pause(PauseMode.IN_PLACE)
        await engine.commit(stamp)
        await engine.resume()
        yield engine


@asynccontextmanager
async def _embedded(settings: Settings, model: Path, stamp: WeightStamp) -> AsyncIterator[Engine]:
    with _load_errors(model):
        engine = EmbeddedEngine.from_directory(
            model,
            dtype=settings.dtype,
            device=settings.device,
            max_running_requests=settings.max_running_requests,
            stamp=stamp,
            max_queued=settings.max_queued_requests,
            chunked_prefill_size=settings.chunked_prefill_size,
            max_total_tokens=settings.max_total_tokens or None,
            mem_fraction_static=settings.mem_fraction_static,
            disable_cuda_graph=settings.disable_cuda_graph,
        )
    async with engine:
        yield engine


@contextmanager
def _load_errors(model: Path) -> Iterator[None]:
    try:
        yield
    except (HotswapError, OSError, ValueError) as error:
        raise StartError(f"cannot load {model}: {error}") from error
    except (RuntimeError, MemoryError, ArithmeticError) as error:
        # What no check foresaw; torch says "out of memory" as RuntimeError, in many lines.
        reason = " ".join(str(error).split()) or "no reason given"
        raise StartError(f"cannot load {model}: {type(error).__name__}: {reason}") from error


async def _listen(
    app: Starlette, commands: Controller, settings: Settings, taken: socket.socket
) -> None:
    asyncio.get_running_loop().set_exception_handler(_log_unless_cancelled)
    url = _url(taken)
    limit, stopping = anyio.CancelScope(), list[bool]()
    with StopSignals() as signals:

        async def stopped() -> None:
            # Called once the server listens.
            _log.info("serving %s on %s, state %s", settings.model, url, commands.machine.state)
            number = await signals.wait()
            _log.info("%s: shutting down; a second one ends at once", number.name)
            stopping.append(True)
            end_for_certain(after_s=settings.graceful_s + _FLUSH_S + _THREADS_S)
            # hypercorn waits for ever to flush a connection whose client reads nothing.
            limit.deadline = anyio.current_time() + settings.graceful_s + _FLUSH_S
            served: Served = app.state.served
            aborted = served.begin_shutdown()
            with anyio.move_on_after(settings.graceful_s):
                await commands.close()
                # New connections come in until this returns.
                await served.submissions.all_read()
            served.end_shutdown()
            _log.info("%d requests in flight were aborted", aborted)

        try:
            with limit:
                await hypercorn.asyncio.serve(
                    cast(Framework, app),
                    _hypercorn_config(settings, taken),
                    shutdown_trigger=stopped,
                    mode="asgi",
                )
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            # hypercorn's ways to say that it did not wait to the end for its connections.
            if not stopping or (_is_cancelled() and not limit.cancel_called):
                raise
            _log.warning("connections that had not ended after %g s were cut", settings.graceful_s)
        except OSError as error:
            raise StartError(f"cannot listen on {url}: {_reason(error)}") from error


def _log_unless_cancelled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # When connections are cut, asyncio's streams of 3.11 ask a cancelled task for its
    # error, and hypercorn's lifespan takes its own cancellation for a failure.
    expected = isinstance(context.get("exception"), (asyncio.CancelledError, LifespanFailureError))
    if not expected and not is_told(context):
        loop.default_exception_handler(context)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _hypercorn_config(settings: Settings, taken: socket.socket) -> ListeningConfig:
    config = ListeningConfig(taken)
    config.accesslog = None
    # A logger of its own would write lines of a form of its own.
    config.errorlog = logging.getLogger("hypercorn.error")
    config.errorlog.setLevel(logging.WARNING)
    config.backlog = 1024
    # Longer than clients keep an idle connection (httpx 5 s, aiohttp 15 s): who closes
    # first must not be the one whom a request may already be under way to. No longer than
    # that, for hypercorn holds a connection that its client has closed just as long, and
    # probes that open one each time must not use up the descriptors.
    config.keep_alive_timeout = 20
    config.keep_alive_max_requests = 1_000_000
    config.graceful_timeout = settings.graceful_s
    config.include_server_header = False
    return config


def _url(taken: socket.socket) -> str:
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
