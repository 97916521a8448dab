from hashlib import sha256
from typing import Any

import pytest
import torch

from hotswap.errors import InFlight
from hotswap.http.weights_checker import NEVER_RESET, rank_checksum
from hotswap.state import State
from hotswap.write_window import WriteWindow

CHECKER = "/weights_checker"


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", {"action": "checksum"})])
async def test_weights_checker(serving: Any, method: str, body: object) -> None:
    serving.engine.tensors["a.bias"] = torch.tensor([7.0])
    status, reply = await serving.json(method, "/weights_checker", json=body)

    checksums = {"embed.weight": f"{15:016x}", "a.bias": f"{7:016x}"}
    of_rank = sha256(
        f"a.bias{checksums['a.bias']}embed.weight{checksums['embed.weight']}".encode()
    ).hexdigest()
    assert status == 200
    assert set(reply) == {"success", "message", "ranks", "per_engine_checksum"}
    assert reply["success"] is True
    (rank,) = reply["ranks"]
    assert rank["checksums"] == checksums
    assert rank["per_gpu_checksum"] == of_rank
    assert rank["parallelism_info"] == {
        "tp_rank": 0,
        "tp_size": 1,
        "dp_rank": 0,
        "dp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "rank": 0,
        "size": 1,
    }
    assert reply["per_engine_checksum"] == sha256(of_rank.encode()).hexdigest()


def test_a_rank_s_checksum_does_not_depend_on_order() -> None:
    assert rank_checksum({"a": "1", "b": "2"}) == rank_checksum({"b": "2", "a": "1"})
    assert rank_checksum({"a": "1"}) != rank_checksum({"a": "2"})


async def act(serving: Any, action: str, **fields: object) -> tuple[int, Any]:
    status, body = await serving.json("POST", CHECKER, json={"action": action, **fields})
    return status, body


@pytest.mark.parametrize("dialect", ["gr", "sglang"])
async def test_another_action_is_a_400_that_names_the_supported(serve: Any, dialect: str) -> None:
    serving = serve(dialect=dialect)
    status, body = await act(serving, "x")

    assert (status, body["success"]) == (400, False)
    assert body["message"].startswith("Unsupported action='x'")
    for action in ("checksum", "snapshot", "reset_tensors", "compare"):
        assert action in body["message"]


async def test_snapshot_reset_and_compare(serving: Any) -> None:
    for _ in range(2):
        status, body = await act(serving, "snapshot")
        assert (status, body["success"]) == (200, True)
    assert (await act(serving, "compare"))[0] == 200

    status, body = await act(
        serving, "reset_tensors", allow_quant_error=True, selector="all", skip_tensor_list=["norm"]
    )
    assert (status, body["success"]) == (200, True)
    assert "1 tensors" in body["message"]
    assert serving.commands.calls == [f"reset {[*NEVER_RESET, 'norm']}"]
    assert serving.commands.machine.state is State.INVALID

    kept = serving.engine.tensors["embed.weight"].clone()
    serving.engine.tensors["embed.weight"].fill_(9)
    status, body = await act(serving, "compare")
    assert (status, body["success"]) == (400, False)
    assert body["error"]["code"] == "weights_differ"
    assert "1 changed: embed.weight" in body["error_message"]
    assert (await act(serving, "compare", skip_tensor_list=["embed"]))[0] == 200

    serving.engine.tensors["embed.weight"].copy_(kept)
    status, body = await act(serving, "compare", allow_quant_error=False, selector="target")
    assert (status, body["success"]) == (200, True)


async def test_a_difference_is_named_in_sglang_s_dialect_too(serve: Any) -> None:
    serving = serve(dialect="sglang")
    await act(serving, "snapshot")
    serving.engine.tensors["embed.weight"].fill_(9)
    status, body = await act(serving, "compare")

    assert (status, body["success"], body["object"]) == (400, False, "error")
    assert "embed.weight" in body["error_message"]


async def test_a_comparison_needs_a_snapshot(serving: Any) -> None:
    status, body = await act(serving, "compare")

    assert (status, body["success"]) == (400, False)
    assert "no snapshot" in body["message"]


async def test_a_refused_reset_says_so(serving: Any) -> None:
    serving.commands.refusal = InFlight("2 requests run")
    status, body = await act(serving, "reset_tensors")

    assert (status, body["success"], body["message"]) == (409, False, "2 requests run")


async def test_checksums_leave_out_what_is_skipped(serving: Any) -> None:
    serving.engine.tensors["a.bias"] = torch.tensor([7.0])
    _, body = await act(serving, "checksum", skip_tensor_list=["embed"])

    assert set(body["ranks"][0]["checksums"]) == {"a.bias"}


@pytest.mark.parametrize(
    "fields", [{"selector": "draft"}, {"skip_tensor_list": "a"}, {"allow_quant_error": "perhaps"}]
)
async def test_bad_fields_are_named(serving: Any, fields: dict[str, object]) -> None:
    status, body = await act(serving, "checksum", **fields)

    assert (status, body["success"]) == (400, False)
    assert next(iter(fields)) in body["message"]


@pytest.mark.parametrize(("dialect", "wanted"), [("gr", 409), ("sglang", 400)])
async def test_a_read_that_waits_too_long_for_a_commit_may_come_again(
    serve: Any, dialect: str, wanted: int
) -> None:
    serving = serve(dialect=dialect)
    serving.commands.writes = WriteWindow(wait_s=0)
    await act(serving, "snapshot")
    with serving.commands.writes.open():
        for path, body in (
            (CHECKER, {"action": "checksum"}),
            (CHECKER, {"action": "snapshot"}),
            (CHECKER, {"action": "compare"}),
            ("/get_weights_by_name", {"name": "embed.weight"}),
        ):
            status, reply = await serving.json("POST", path, json=body)
            assert (status, "half old, half new" in str(reply)) == (wanted, True), (body, reply)
            if dialect == "gr":
                assert reply["error"]["code"] == "busy"
                assert reply["error"]["retryable"] is True
    assert (await act(serving, "compare"))[0] == 200


async def test_weights_that_are_not_whole_are_shown_and_said_to_be_so(serving: Any) -> None:
    await act(serving, "reset_tensors")
    for action in ("checksum", "snapshot"):
        status, reply = await act(serving, action)
        assert status == 200
        assert reply["message"].endswith("The weights are not whole: torn.")
