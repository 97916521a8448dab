"""Arguments that do not fit are refused with the field, what was seen and what was wanted."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from hotswap.http.errors import RequestInvalid
from hotswap.http.json_body import converted
from hotswap.http.misfits import refusal
from hotswap.http.occupation import ReleaseBody
from hotswap.http.push import PushBody
from hotswap.http.push_bodies import SessionBeginBody, SessionCommitBody, TensorUpdateBody
from hotswap.http.schemas import FlushBody, GenerateBody, RelabelBody, WeightByNameBody

CASES: list[tuple[type[msgspec.Struct], dict[str, object], str]] = [
    (SessionBeginBody, {"scope": "ful"}, "$.scope is 'ful', wanted one of: full, partial"),
    (SessionBeginBody, {"scope": "x - at `$.y[9]`"}, "$.scope is 'x - at `$.y[9]`', wanted one"),
    (SessionBeginBody, {"scope": 3}, "$.scope is 3, wanted str"),
    (SessionBeginBody, {"update_id": ""}, "$.update_id is '', wanted str of length >= 1"),
    (ReleaseBody, {"tags": ["weight"]}, "$.tags[0] is 'weight', wanted one of: "),
    (
        TensorUpdateBody,
        {},
        "required field `serialized_named_tensors` is missing, wanted a list or an object",
    ),
    (
        TensorUpdateBody,
        {"serialized_named_tensors": {"a": 3}},
        "$.serialized_named_tensors[...] is of another type, wanted str",
    ),
    (RelabelBody, {}, "required field `new_version` is missing, wanted a text or a whole number"),
    (RelabelBody, {"new_version": [1]}, "$.new_version is a list, wanted int | str"),
    (RelabelBody, {"new_version": {}}, "$.new_version is an object, wanted int | str"),
    (WeightByNameBody, {"truncate_size": 1}, "required field `name` is missing, wanted a text"),
    (FlushBody, {"timeout": "x" * 99}, f"$.timeout is '{'x' * 63}..., wanted float"),
    (GenerateBody, {"sampling_params": {"n": 0}}, "$.sampling_params.n is 0, wanted int >= 1"),
    (
        GenerateBody,
        {"sampling_params": [{}, {"temperature": -1}]},
        "$.sampling_params[1].temperature is -1, wanted float >= 0.0",
    ),
    (SessionCommitBody, {"wait_s": -1}, "$.wait_s is -1, wanted float >= 0.0"),
    (PushBody, {"tensors": [{}]}, "required field `tensors[0].name` is missing, wanted a text"),
]


@pytest.mark.parametrize(("wanted", "values", "told"), CASES)
def test_a_misfit_is_named(
    wanted: type[msgspec.Struct], values: dict[str, object], told: str
) -> None:
    with pytest.raises(RequestInvalid) as caught:
        converted(values, wanted)
    assert str(caught.value).startswith(told)
    place = re.search(r"(?:\$\.|field `)(\w+)", told)
    assert place is not None
    assert caught.value.field == place[1]


def test_what_is_of_no_known_form_is_repeated() -> None:
    error = refusal(RecursionError("too deep"), {}, FlushBody)
    assert (str(error), error.field) == ("invalid request: too deep", None)


async def test_routes_say_it(serving: Any) -> None:
    for path, body, told in (
        ("/hotswap/v1/begin", {"scope": "ful"}, "$.scope is 'ful', wanted one of: full, partial"),
        (
            "/update_weight_version",
            {},
            "required field `new_version` is missing, wanted a text or a whole number",
        ),
    ):
        status, reply = await serving.json("POST", path, json=body)
        assert (status, reply["error"]["code"]) == (400, "validation_error")
        assert reply["error"]["message"] == told
