"""Every error of the server arrives as the class that it had there."""

from __future__ import annotations

import json

import pytest

from hotswap import errors
from hotswap.client.effects import Reply
from hotswap.client.errors import (
    NoAnswer,
    OutcomeUnknown,
    RequestRefused,
    WeightsAfter,
    weights_after,
)
from hotswap.client.replies import CODES, body_of, command_error, message_of, update_error
from hotswap.http import errors as edge
from hotswap.http.dialect import Dialect
from hotswap.http.dialect_gr import GrDialect
from hotswap.http.dialect_sglang import SglangDialect
from hotswap.http.envelope import error_reply
from hotswap.http.routes import Kind
from tests.unit.client.script import reply

DIALECTS = (GrDialect(), SglangDialect())
RAISED = [kind for kind in edge.GR_TABLE if issubclass(kind, errors.HotswapError)]
AT_THE_EDGE = [kind for kind in edge.GR_TABLE if kind not in RAISED]


def answered(error: Exception, dialect: Dialect, kind: Kind, *, told: bool = True) -> Reply:
    response = error_reply(error, dialect=dialect, kind=kind)
    headers = {name.lower(): value for name, value in response.headers.items()}
    if not told:
        headers.pop("x-hotswap-error", None)
    return Reply(status=response.status_code, headers=headers, body=bytes(response.body))


def made(kind: type[Exception]) -> Exception:
    return kind() if kind in (edge.Unauthorized, edge.Forbidden) else kind("what was seen")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("kind", RAISED)
def test_the_class_is_the_servers(kind: type[Exception], dialect: Dialect) -> None:
    seen = answered(kind("what was seen"), dialect, Kind.UPDATE)
    for error in (update_error(seen, doing="update"), command_error(seen, doing="pause")):
        assert type(error) is kind
        assert "what was seen" in str(error)


def test_a_class_of_a_newer_server_is_not_made_up() -> None:
    headers = {"x-hotswap-error": "BrandNew"}
    told = {"object": "error", "success": False, "message": "m", "local_version": 3}
    seen = Reply(status=409, headers=headers, body=json.dumps(told).encode())
    assert type(update_error(seen, doing="update")) is errors.UpdateRejected


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("kind", AT_THE_EDGE)
def test_what_ends_at_the_edge_left_the_weights_alone(
    kind: type[Exception], dialect: Dialect
) -> None:
    error = command_error(answered(made(kind), dialect, Kind.CONTROL), doing="pause")
    wanted = errors.ShuttingDown if kind is edge.ShuttingDown else RequestRefused
    assert type(error) is wanted
    assert weights_after(error) is WeightsAfter.UNTOUCHED


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (edge.RequestInvalid, errors.UpdateRejected),
        (edge.PayloadTooLarge, errors.UpdateRejected),
        (edge.Unauthorized, RequestRefused),
        (edge.RouteDisabled, RequestRefused),
        (edge.EngineDown, OutcomeUnknown),
        (RuntimeError, OutcomeUnknown),
    ],
)
def test_an_update_that_ends_at_the_edge(
    kind: type[Exception], wanted: type[Exception], dialect: Dialect
) -> None:
    error = update_error(answered(made(kind), dialect, Kind.UPDATE), doing="update")
    assert type(error) is wanted


def test_gr_needs_no_header() -> None:
    for kind in (*CODES.values(), errors.InFlight, errors.IllegalCommand):
        seen = answered(kind("no"), GrDialect(), Kind.UPDATE, told=False)
        assert type(update_error(seen, doing="update")) is kind
    seen = answered(errors.UpdateRejected("no"), GrDialect(), Kind.UPDATE, told=False)
    assert type(update_error(seen, doing="update")) is errors.UpdateRejected


def test_every_code_that_means_one_class_is_known() -> None:
    codes = {wire.code for kind, wire in edge.GR_TABLE.items() if kind in RAISED}
    assert set(CODES) == codes - {"conflict", "validation_error"}


@pytest.mark.parametrize(
    ("status", "message", "wanted"),
    [
        (400, "Failed to get weights iterator: no file.", errors.UpdateRejected),
        (400, "Failed to get model loader: x.", errors.UpdateRejected),
        (
            400,
            "Failed to update weights: size mismatch.\nRolling back to original weights.",
            errors.UpdateFailed,
        ),
        (
            400,
            "Failed to update parameter online: x. The full weights of the ModelRunner are "
            "partially updated. Please discard the whole weights.",
            errors.UpdateFailed,
        ),
        (400, "something that nobody has seen before", OutcomeUnknown),
        (200, "Failed to update weights: said with a 200.", errors.UpdateFailed),
    ],
)
def test_sglangs_own_words(status: int, message: str, wanted: type[Exception]) -> None:
    seen = reply(status, {"success": False, "message": message})
    assert type(update_error(seen, doing="update")) is wanted


def test_sglangs_check_of_the_request_and_its_crash() -> None:
    wrong = reply(400, {"object": "error", "message": "1 validation error", "code": 400})
    assert type(update_error(wrong, doing="update")) is errors.UpdateRejected
    crashed = Reply(status=500, body=b"Internal Server Error")
    error = update_error(crashed, doing="update")
    assert type(error) is OutcomeUnknown
    assert "Internal Server Error" in str(error)


def test_bodies_that_are_none() -> None:
    assert body_of(Reply(status=200, body=b"")) == {}
    assert body_of(Reply(status=200, body=b"[1]")) == {}
    assert body_of(Reply(status=200, body=b"[" * 100_000)) == {}
    assert message_of(Reply(status=200, body=b"")) == "nothing more"
    assert message_of(Reply(status=401, body=json.dumps({"error": "Unauthorized"}).encode())) == (
        "Unauthorized"
    )
    assert message_of(Reply(status=404, body=b'{"detail": "Not Found"}')) == "Not Found"
    assert command_error(reply(409, {"error": {"code": 7}}), doing="x").retryable is False


def test_what_an_error_says_about_the_weights() -> None:
    assert weights_after(errors.UpdateFailed("x")) is WeightsAfter.NOT_WHOLE
    assert weights_after(errors.UpdateRolledBack("x")) is WeightsAfter.PUT_BACK
    assert weights_after(errors.UpdateRejected("x")) is WeightsAfter.UNTOUCHED
    assert weights_after(NoAnswer("x")) is WeightsAfter.UNTOUCHED
    assert weights_after(OutcomeUnknown("x")) is WeightsAfter.UNKNOWN
    assert weights_after(KeyboardInterrupt()) is WeightsAfter.UNKNOWN


@pytest.mark.parametrize("told", [True, False, None, "yes"])
def test_an_error_may_be_sent_again_where_the_server_says_so(told: object) -> None:
    envelope = {"code": "validation_error", "message": "x", "retryable": told}
    found = update_error(
        reply(400, {"error": envelope}, x_hotswap_error="UpdateRejected"), doing="update"
    )
    assert type(found) is errors.UpdateRejected
    assert found.retryable is (told is True)
