"""Everything that ``hotswap serve`` can be told: a flag, else ``HOTSWAP_*``, else a default.

There is no torch in here: the command line has to be read before torch is imported.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hotswap.api_keys import ApiKey
from hotswap.options import Option, OptionType, add_option_flags, option_values

__all__ = [
    "CHOICES",
    "OPTIONS",
    "Settings",
    "SettingsError",
    "add_core_flags",
    "add_flags",
    "model_directory",
    "settings_from",
]

CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "device": ("auto", "cpu", "cuda"),
    "dialect": ("gr", "sglang"),
    "while_paused": ("auto", "reject", "hold"),
    "load_mode": ("staged", "direct"),
    "local_checkpoint": ("materialize", "two-copies", "log"),
    "follow_commit": ("manual", "auto"),
    "follow_pause_mode": ("retract", "in_place", "abort", "wait"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
}
"""What a setting may be that is one of a few."""

# Least and greatest value of each number.
_RANGES: Mapping[str, tuple[float, float]] = {
    "port": (0, 65535),
    "hold_s": (0, math.inf),
    "session_timeout_s": (0.001, math.inf),
    "generate_timeout_s": (0, math.inf),
    "graceful_s": (0, 3600),
    "pull_threads": (0, 256),
    "follow_interval_s": (0.01, 86400),
    "patch_cache_mb": (0, math.inf),
    "max_running_requests": (1, math.inf),
    "max_queued_requests": (1, math.inf),
    "chunked_prefill_size": (1, math.inf),
    "max_total_tokens": (0, math.inf),
    "mem_fraction_static": (0.001, 1),
    "max_http_request_bytes": (1, math.inf),
}

# Of those whose default is None and that are no texts.
_TYPES: Mapping[str, OptionType] = {"generate_timeout_s": float}

_ENV_ALIASES: Mapping[str, str] = {
    "HOTSWAP_MODEL_PATH": "HOTSWAP_MODEL",
    "GR_ALLOW_WEIGHT_UPDATE": "HOTSWAP_ALLOW_WEIGHT_UPDATE",
    "GR_HTTP_API_KEY": "HOTSWAP_API_KEY",
}

_KEYS = ("api_key", "admin_api_key")

_NEVER_EMPTY = (
    "model",
    "served_model_name",
    "engine",
    "host",
    "load_strategy",
    "follow",
    "follow_local",
)

# Unset and empty are not the same here: an empty key would quietly be no key.
_KEY_VARIABLES = frozenset({"HOTSWAP_API_KEY", "HOTSWAP_ADMIN_API_KEY", "GR_HTTP_API_KEY"})


class SettingsError(ValueError):
    """A setting is not usable; the message names it, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one server was told.

    ``hold_s`` bounds how long ``while_paused="hold"`` keeps a request waiting,
    ``session_timeout_s`` how long a session of pushes may lie abandoned,
    ``generate_timeout_s`` how long anything keeps a reply waiting (0: nothing does, None:
    as the dialect has it), ``graceful_s`` how long requests may take to end at a shutdown.
    ``plugin_options`` has the value of every plug-in option by its name.

    Raises: SettingsError.
    """

    model: str | None = None
    served_model_name: str | None = None
    engine: str = "embedded"
    host: str = "127.0.0.1"
    port: int = 30000
    dtype: str = "auto"
    device: str = "auto"
    dialect: str = "gr"
    while_paused: str = "auto"
    hold_s: float = 60.0
    session_timeout_s: float = 600.0
    generate_timeout_s: float | None = None
    allow_weight_update: bool = False
    api_key: ApiKey | None = None
    admin_api_key: ApiKey | None = None
    load_mode: str = "staged"
    load_strategy: str = "disk"
    source_root: tuple[str, ...] = ()
    local_root: tuple[str, ...] = ()
    local_checkpoint: str = "materialize"
    pull_threads: int = 0
    patch_cache_mb: int = 1024
    custom_pull_weights_pre_read_hook: str | None = None
    follow: str | None = None
    follow_local: str | None = None
    follow_commit: str = "manual"
    follow_pause_mode: str = "retract"
    follow_interval_s: float = 5.0
    follow_ready_version: str = "newest"
    max_running_requests: int = 16
    max_queued_requests: int = 1024
    chunked_prefill_size: int = 512
    max_total_tokens: int = 0
    mem_fraction_static: float = 0.5
    disable_cuda_graph: bool = False
    max_http_request_bytes: int = 1024 * 1024
    graceful_s: float = 5.0
    workers: int = 1
    server_info: str | None = None
    log_level: str = "info"
    log_format: str = "text"
    plugin_options: Mapping[str, object] = field(default_factory=dict)

    @property
    def option_values(self) -> dict[str, object]:
        """What a plug-in's factories get: every option by its name, but no key."""
        own = {name: getattr(self, name) for name in _HELP if name not in _KEYS}
        return {name.replace("_", "-"): value for name, value in own.items()} | dict(
            self.plugin_options
        )

    @property
    def server_info_fields(self) -> dict[str, object]:
        """``server_info`` as the object that it is. Raises: SettingsError."""
        if self.server_info is None:
            return {}
        try:
            fields = json.loads(self.server_info)
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"--server-info is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise SettingsError(
                f"--server-info is a JSON {type(fields).__name__}, wanted an object"
            )
        return fields

    def __post_init__(self) -> None:
        for name in _NEVER_EMPTY:
            value = getattr(self, name)
            if value is not None and not value.strip():
                # The empty address is every address, the empty directory the current one.
                raise SettingsError(f"{_flag(name)} is empty, wanted {_HELP[name]}")
        for name in _KEYS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, ApiKey):
                raise SettingsError(
                    f"{_flag(name)} is a {type(value).__name__}, wanted an ApiKey (of "
                    "hotswap.api_keys), which nothing can show"
                )
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise SettingsError(f"{_flag(name)} is {value}, wanted one of {', '.join(choices)}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise SettingsError(f"{_flag(name)} is {value}, wanted {least} to {most}")
        # A wrong one is found now, and not by the first client that asks.
        _ = self.server_info_fields
        if self.workers != 1:
            raise SettingsError(
                f"--workers is {self.workers}, wanted 1: each worker would hold its own weights, "
                "and an update would reach only one of them; start several servers instead"
            )


_HELP: Mapping[str, str] = {
    "model": "directory of the checkpoint to serve; --model-path is the same",
    "served_model_name": "what /v1/models calls the model; the directory by default",
    "engine": "what runs the model: embedded, or the engine of a plug-in",
    "host": "address to listen on",
    "port": "port to listen on; 0 takes a free one and prints it",
    "dtype": "auto (the checkpoint's), float32, bfloat16 or float16",
    "device": "auto, cpu or cuda",
    "dialect": "what errors and a few replies look like: gr or sglang",
    "while_paused": "what a request meets during a pause: reject (a 503), hold, or auto: "
    "reject in the dialect gr, hold in sglang",
    "hold_s": "longest hold in seconds; a 503 after it",
    "session_timeout_s": "seconds after its last chunk until an update session is over",
    "generate_timeout_s": "longest wait in seconds for a reply, or for the next event of a "
    "stream; a 504 after it, 0 waits for ever; 300 by default in the dialect gr, 0 in sglang",
    "allow_weight_update": "serve the routes that control the server, change and show weights",
    "api_key": "key that clients have to send; better given by its variable",
    "admin_api_key": "key of those who may control the server, change and show weights",
    "load_mode": "staged (host memory first, can be undone) or direct (little memory, no undo)",
    "load_strategy": "where the weights of an update come from that names no strategy: disk, or "
    "the strategy of a plug-in",
    "source_root": "directory that the sources of pulls must lie in, every symbolic link "
    "resolved, or the URL of an object store's prefix; repeatable; any directory, and no URL, "
    "when not given",
    "local_root": "directory that pulls may write below, every symbolic link resolved; "
    "repeatable; when not given, wherever nothing is or a pull wrote before",
    "local_checkpoint": "what pulls make of a local checkpoint: materialize (its files are the "
    "version), two-copies (the same, faster for twice the room), or log (its files stay, deltas "
    "are kept beside them for this server to apply)",
    "pull_threads": "threads of a pull; 0 is one for every two cores, at most 8",
    "patch_cache_mb": "MiB for what pulls have changed, so that the update that follows writes no "
    "more than that; 0 loads everything each time",
    "custom_pull_weights_pre_read_hook": "import path of a function (source_dir, target_version), "
    "plain or async, that each pull calls before it looks at its source",
    "follow": "directory of published versions, or the URL of an object store's prefix, that the "
    "server keeps itself current with: it pulls ahead while it serves, from the model on",
    "follow_local": "directory of its own that --follow pulls into; one below the first "
    "--local-root, or else below the user's cache, when not given",
    "follow_commit": "when --follow makes live what it has pulled: manual (at /hotswap/v1/commit, "
    "but for what the server is to be ready with), or auto (at once)",
    "follow_pause_mode": "how the commits of --follow that nobody asked for meet requests in "
    "flight: retract, in_place, abort or wait",
    "follow_interval_s": "seconds between two looks of --follow, and up to a quarter more; a "
    "notice (/hotswap/v1/follow/notice) makes it look at once",
    "follow_ready_version": "version that --follow has to have reached for /ready to say so; "
    "newest is the newest that there is at the start, 0 waits for none",
    "max_running_requests": "requests that share a forward pass",
    "max_queued_requests": "requests that may wait beyond those that can run; one more gets a 429",
    "chunked_prefill_size": "prompt tokens that one forward pass computes, of all prompts together",
    "max_total_tokens": "tokens whose keys and values are held at once; 0 sets no bound of its own",
    "mem_fraction_static": "part of the memory that is free once the model is loaded which keys "
    "and values may take",
    "disable_cuda_graph": "run decode steps on CUDA kernel by kernel; they are captured otherwise",
    "max_http_request_bytes": "longest request body that is read",
    "graceful_s": "seconds that requests get to end at a shutdown",
    "workers": "only 1 is possible",
    "server_info": "JSON object: fields that /server_info shows besides its own, or instead",
    "log_level": "debug, info, warning or error",
    "log_format": "text, or json for one object a line",
}


def _options() -> tuple[Option, ...]:
    defaults: dict[str, Any] = {item.name: item.default for item in fields(Settings)}
    return tuple(
        Option(
            name=name.replace("_", "-"),
            help=_with_default(text, defaults[name]),
            type=_TYPES.get(name) or _type_of(defaults[name]),
            repeatable=defaults[name] == (),
            default=None if defaults[name] == () else defaults[name],
        )
        for name, text in _HELP.items()
    )


def _type_of(default: Any) -> OptionType:
    if default is None or isinstance(default, tuple):
        return str
    found: OptionType = type(default)
    return found


def _with_default(text: str, default: object) -> str:
    none = default is None or default is False or default == ()
    return text if none else f"{text}; {default} by default"


OPTIONS: tuple[Option, ...] = _options()
"""The server's own options; each is a field of :class:`Settings`."""


def add_flags(parser: argparse.ArgumentParser, plugin_options: Iterable[Option]) -> None:
    """Add every flag: the server's own and those of the plug-ins."""
    add_core_flags(parser)
    add_option_flags(parser, plugin_options)


def add_core_flags(parser: argparse.ArgumentParser) -> None:
    """Add the server's own flags."""
    add_option_flags(parser, OPTIONS)
    parser.add_argument("--model-path", dest="model", default=None, help=argparse.SUPPRESS)


def settings_from(
    flags: argparse.Namespace | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    plugin_options: Iterable[Option] = (),
) -> Settings:
    """Settings from parsed flags and the environment; a flag wins.

    An empty variable counts as unset, unless it is a list or a key. Raises: SettingsError.
    """
    plugin_options = tuple(plugin_options)
    # A list, such as the places that may be read, stays: empty is not the same as none.
    lists = {option.env for option in (*OPTIONS, *plugin_options) if option.repeatable}
    kept = lists | _KEY_VARIABLES
    known = {name: text for name, text in environ.items() if text.strip() or name in kept}
    _refuse_many_workers(known)
    try:
        _adopt_aliases(known)
        own = option_values(OPTIONS, flags=flags, environ=known)
        brought = option_values(plugin_options, flags=flags, environ=known)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    values: dict[str, Any] = {name.replace("-", "_"): value for name, value in own.items()}
    for name in _KEYS:
        values[name] = _api_key(name, values[name])
    return Settings(**values, plugin_options=brought)


def _api_key(name: str, text: str | None) -> ApiKey | None:
    """Raises: SettingsError, which does not repeat the key."""
    try:
        return None if text is None else ApiKey(text)
    except ValueError as error:
        raise SettingsError(f"{_flag(name)} (or {_flag_variable(name)}): {error}") from None


def _adopt_aliases(known: dict[str, str]) -> None:
    """Raises: ValueError naming the alias whose value is none."""
    options = {option.env: option for option in OPTIONS}
    for alias, name in _ENV_ALIASES.items():
        if alias in known and name not in known:
            options[name].parse_env(known[alias], variable=alias)
            known[name] = known[alias]


def _refuse_many_workers(environ: Mapping[str, str]) -> None:
    asked = environ.get("WEB_CONCURRENCY", "1").strip()
    if asked != "1":
        raise SettingsError(
            f"WEB_CONCURRENCY is {asked}, wanted 1 or unset: each worker would hold its own "
            "weights, and an update would reach only one of them; start several servers instead"
        )


def model_directory(settings: Settings) -> Path:
    """The directory to serve. Raises: SettingsError when it is not told, or is none."""
    if settings.model is None:
        raise SettingsError("--model is missing, wanted the directory of a checkpoint")
    path = Path(settings.model)
    if not path.is_dir():
        seen = "is a file" if path.exists() else "is not there"
        raise SettingsError(f"--model {path} {seen}, wanted the directory of a checkpoint")
    return path


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flag_variable(name: str) -> str:
    return "HOTSWAP_" + name.upper()
