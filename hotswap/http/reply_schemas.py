"""What a reply that is no error looks like, by path: JSON schemas for the OpenAPI document.

Rule: a schema names what clients may rely on. Replies may have more in them, and a test
compares a real reply of every route with its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["REPLY_SCHEMAS", "Schema"]

Schema: TypeAlias = Mapping[str, object]

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_BOOL: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_COUNT_OR_NULL: Schema = {"type": ["integer", "null"]}
_NUMBER: Schema = {"type": "number"}
_ANY_OBJECT: Schema = {"type": "object"}
_OBJECT_OR_NULL: Schema = {"type": ["object", "null"]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(always: Mapping[str, Schema], sometimes: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**always, **(sometimes or {})},
        "required": list(always),
    }


_SPAN = _object({"version": _TEXT_OR_NULL, "weight_epoch": _COUNT, "start": _COUNT, "end": _COUNT})
_META = _object(
    {
        "id": _TEXT,
        "finish_reason": _OBJECT_OR_NULL,
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "cached_tokens": _COUNT,
        "num_retractions": _COUNT,
        "e2e_latency": _NUMBER,
        "weight_version": _TEXT_OR_NULL,
        "weight_version_start": _TEXT_OR_NULL,
        "weight_version_end": _TEXT_OR_NULL,
        "weight_versions": _list(_SPAN),
        "weight_epoch": _COUNT,
    },
    {
        "request_id": _TEXT,
        "token_ids": _list(_COUNT),
        "beam_width": _COUNT,
        "beam_results": _list(_object({"output_ids": _list(_COUNT), "meta_info": _ANY_OBJECT})),
        **{
            f"{side}_{kind}_logprobs": _list({"type": ["array", "null"]})
            for side in ("input", "output")
            for kind in ("token", "top", "token_ids")
        },
    },
)
_GENERATED = _object({"text": _TEXT, "output_ids": _list(_COUNT), "meta_info": _META})
_SUBMITTED = _object(
    {
        "request_id": _TEXT,
        "state": {"enum": ["waiting", "running", "finished", "aborted", "failed"]},
    },
    # One that waits has no more of them than its id; one that failed has an error instead.
    {"text": _TEXT, "output_ids": _list(_COUNT), "meta_info": _ANY_OBJECT},
)
_ROW = _object({"request_id": _TEXT, "state": _TEXT, "route": {"enum": ["generate", "submit"]}})
# An object in one dialect, null in the other.
_MOVED: Schema = {
    "anyOf": [
        _object(
            {
                "success": {"const": True},
                "message": _TEXT,
                "tags": _list(_TEXT),
                "released": _list(_TEXT),
            },
            {"num_aborted_requests": _COUNT},
        ),
        {"type": "null"},
    ]
}
_STAMP: Mapping[str, Schema] = {
    "weight_version": _TEXT_OR_NULL,
    "token_step": _COUNT_OR_NULL,
    "weight_update_count": _COUNT,
    "weight_epoch": _COUNT,
}
_VERSION = _object(_STAMP)
_MACHINE: Mapping[str, Schema] = {
    "state": _TEXT,
    "facts": _object({"gate": _TEXT_OR_NULL, "weights": _TEXT, "kv": _TEXT, "busy": _TEXT}),
    "reasons": _list(_TEXT),
    "weights": _VERSION,
    "updates": _list(_ANY_OBJECT),
    "in_flight": _object({"running": _COUNT, "waiting": _COUNT, "holding_kv": _COUNT}),
}
_FOLLOW = _object(
    {
        **dict.fromkeys(("source", "local", "commit", "state"), _TEXT),
        "reason": _TEXT_OR_NULL,
        **{
            f"{name}_version": _COUNT_OR_NULL
            for name in ("newest", "pulled", "live", "target", "ready")
        },
        **dict.fromkeys(("versions_behind", "bytes_behind", "looks", "failures"), _COUNT),
        "seconds_behind": _NUMBER,
        "displaced": _BOOL,
        "reached": _BOOL,
    }
)
_SAID: Mapping[str, Schema] = {"success": {"const": True}, "message": _TEXT}
_COST: Mapping[str, Schema] = {
    "tensors_loaded": _COUNT,
    "flushed_cache": _BOOL,
    "entries_cleared": _COUNT,
    "num_aborted_requests": _COUNT,
    "num_paused_requests": _COUNT,
    **_STAMP,
    "elapsed_ms": _NUMBER,
    "staged_ms": _NUMBER,
    "paused_ms": _NUMBER,
    "bytes": _COUNT,
    "mode": {"enum": ["full", "sparse"]},
    "load_mode": {"enum": ["staged", "direct"]},
    "elements_moved": _COUNT,
    "missing": _list(_TEXT),
    "unknown": _list(_TEXT),
}
_UPDATED = _object({**_SAID, "model_dir": _TEXT, **_COST})
_SENT = _object(
    {
        **_SAID,
        **_COST,
        "num_missing": _COUNT,
        "coverage": _OBJECT_OR_NULL,
        "update_id": _TEXT_OR_NULL,
        "staged": _BOOL,
    },
    {"repeated": _COUNT},
)
_DONE = _object(_SAID)
_BEGUN = _object({**_SAID, "update_id": _TEXT})
_PULLED = _object(
    {
        "success": {"const": True},
        "message": _TEXT,
        "error_message": {"type": "null"},
        "mode": {"enum": ["noop", "delta", "fold", "seed", "reseed", "recovered", "log"]},
        "local_version": _COUNT,
        "start_version": _COUNT,
        "versions": _list(_COUNT),
        "aggregate": _BOOL,
        "reason": _TEXT_OR_NULL,
        "read_bytes": _COUNT,
        "written_bytes": _COUNT,
        "seconds": {"type": "object", "additionalProperties": _NUMBER},
    }
)
_CHECKED = _object(
    {"success": {"const": True}, "message": _TEXT},
    {
        "ranks": _list(
            _object(
                {
                    "checksums": {"type": "object", "additionalProperties": _TEXT},
                    "per_gpu_checksum": _TEXT,
                    "parallelism_info": _ANY_OBJECT,
                }
            )
        ),
        "per_engine_checksum": _TEXT,
    },
)
_MODEL_INFO = _object(
    {
        "model_path": _TEXT_OR_NULL,
        "tokenizer_path": _TEXT_OR_NULL,
        "is_generation": _BOOL,
        "weight_version": _TEXT_OR_NULL,
        "weight_epoch": _COUNT,
    }
)
_SERVER_INFO = _object({"internal_states": _list(_ANY_OBJECT)})
_LOAD = _object(
    {
        "dp_rank": _COUNT,
        "num_reqs": _COUNT,
        "num_running_reqs": _COUNT,
        "num_waiting_reqs": _COUNT,
        "max_running_requests": _COUNT,
        "token_usage": _NUMBER,
    }
)
_MODEL = _object({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT})


def _completion(kind: str, choice: Mapping[str, Schema]) -> Schema:
    shown = {"index": _COUNT, **choice, "finish_reason": _TEXT, "metadata": _ANY_OBJECT}
    usage = _object({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT})
    return _object(
        {
            "id": _TEXT,
            "object": {"const": kind},
            "created": _COUNT,
            "model": _TEXT,
            "choices": _list(_object(shown)),
            "usage": usage,
            "metadata": _ANY_OBJECT,
        }
    )


_MESSAGE = _object({"role": {"const": "assistant"}, "content": _TEXT, "refusal": _TEXT_OR_NULL})

REPLY_SCHEMAS: Mapping[str, Schema] = {
    "/generate": {"anyOf": [_GENERATED, _list(_GENERATED)]},
    "/submit": _object({"request_id": _TEXT}),
    "/submit_many": _object({"request_ids": _list(_TEXT)}),
    "/poll/{request_id:path}": _SUBMITTED,
    "/result/{request_id:path}": _SUBMITTED,
    "/cancel": _object({"request_id": _TEXT, "cancelled": _BOOL}),
    "/requests": _object({"requests": _list(_ROW), "count": _COUNT}),
    "/requests/{request_id:path}": _ROW,
    "/pause_generation": _object(
        {"paused": {"const": True}, "mode": _TEXT, "num_aborted_requests": _COUNT}
    ),
    "/continue_generation": _object({"paused": {"const": False}}),
    "/flush_cache": _object({"success": {"const": True}, "entries_cleared": _COUNT}),
    "/update_weights_from_disk": _UPDATED,
    "/pull_weights": _PULLED,
    "/update_weight_version": _object(
        {
            "success": {"const": True},
            "message": _TEXT,
            "new_version": _TEXT,
            "num_aborted_requests": _COUNT,
        }
    ),
    "/update_weights_from_tensor": _SENT,
    "/begin_weight_update": _BEGUN,
    # What it cost is there where chunks were committed.
    "/end_weight_update": _object({**_SAID, "num_updates": _COUNT, "update_id": _TEXT}, _COST),
    "/hotswap/v1/push": _SENT,
    "/hotswap/v1/begin": _BEGUN,
    # The version is there where it is one of a stream, the id where it is that of a session.
    "/hotswap/v1/commit": _object(
        {**_SAID, **_COST, "update_id": _TEXT_OR_NULL}, {"version": _COUNT_OR_NULL}
    ),
    "/hotswap/v1/follow/notice": _object({**_SAID, "follow": _FOLLOW}),
    "/hotswap/v1/abort": _object({**_SAID, "update_id": _TEXT_OR_NULL, "aborted": _BOOL}),
    "/release_memory_occupation": _MOVED,
    "/resume_memory_occupation": _MOVED,
    "/post_process_weights": _DONE,
    # An object in one dialect, in the other the bare rows.
    "/get_weights_by_name": {
        "anyOf": [
            _object({"parameter": {"type": ["array", "number"]}}),
            {"type": ["array", "number"]},
        ]
    },
    "/weights_checker": _CHECKED,
    "/get_weight_version": _VERSION,
    "/weight_version": _VERSION,
    "/health": _object({"status": _TEXT, "state": _TEXT, "engine_alive": _BOOL}),
    "/ready": _object({"ready": _BOOL, "reasons": _list(_TEXT), "state": _TEXT}),
    "/status": _object(
        {
            **_MACHINE,
            "version": _TEXT,
            "ready": _BOOL,
            "http_requests": _COUNT,
            "counters": _ANY_OBJECT,
            "follow": {"anyOf": [_FOLLOW, {"type": "null"}]},
            "model_path": _TEXT,
        }
    ),
    "/model_info": _MODEL_INFO,
    "/get_model_info": _MODEL_INFO,
    "/server_info": _SERVER_INFO,
    "/get_server_info": _SERVER_INFO,
    "/v1/loads": _object(
        {"timestamp": _TEXT, "version": _TEXT, "dp_rank_count": _COUNT, "loads": _list(_LOAD)}
    ),
    "/get_load": _list(
        _object({"num_reqs": _COUNT, "num_waiting_reqs": _COUNT, "num_tokens": _COUNT})
    ),
    "/hotswap/v1/state": _object(
        {**_MACHINE, "session": _OBJECT_OR_NULL, "follow": _OBJECT_OR_NULL, "tasks": _COUNT}
    ),
    "/openapi.json": _object(
        {"openapi": _TEXT, "info": _ANY_OBJECT, "paths": _ANY_OBJECT, "components": _ANY_OBJECT}
    ),
    "/v1/models": _object({"object": {"const": "list"}, "data": _list(_MODEL)}),
    "/v1/models/{model:path}": _MODEL,
    "/v1/completions": _completion("text_completion", {"text": _TEXT, "logprobs": _OBJECT_OR_NULL}),
    "/v1/chat/completions": _completion(
        "chat.completion", {"message": _MESSAGE, "logprobs": _OBJECT_OR_NULL}
    ),
}
"""Every route of the core that answers with JSON, but for ``/abort_request``, which is empty."""
