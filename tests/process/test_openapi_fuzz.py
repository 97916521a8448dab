"""The live server keeps to its own OpenAPI document, whatever is sent."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from schemathesis import GenerationMode

from hotswap.testing.server import ServerProcess
from tests.process.forked_server import ForkedServer
from tests.process.schema_fuzz import fuzz, operations_of

# The server is another process: there is little to trace in this one.
pytestmark = [pytest.mark.process, pytest.mark.no_cover]


@pytest.fixture
def fuzzed(request: pytest.FixtureRequest, a: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    # Pulls would write wherever the fuzz names an empty place.
    arguments = ("--dialect", getattr(request, "param", "gr"), "--local-root", str(tmp_path))
    with ForkedServer(a, *arguments) as server:
        yield server
        assert server.exit_code is None
        assert "Traceback" not in server.log, server.log


def put_back(client: httpx.Client) -> None:
    """What the last one may have closed, begun or released is as it was for the next."""
    client.post("/hotswap/v1/abort").raise_for_status()
    client.post("/resume_memory_occupation").raise_for_status()
    if client.get("/status").json()["facts"]["weights"] != "whole":
        path = client.get("/model_info").json()["model_path"]
        body = {"model_path": path, "pause_mode": "abort"}
        client.post("/update_weights_from_disk", json=body).raise_for_status()
    client.post("/continue_generation").raise_for_status()


def fuzz_all(server: ServerProcess, *, examples: int) -> None:
    """Every operation with requests that fit its schema, and with some that do not."""
    with server.client() as client:
        operations = operations_of(client)
        assert len(operations) > 15
        for name, operation in sorted(operations.items()):
            seen = fuzz(operation, server.base_url, examples=examples)
            assert seen, name
            takes = operation.body or operation.query
            if takes:
                fuzz(
                    operation,
                    server.base_url,
                    examples=examples,
                    mode=GenerationMode.NEGATIVE,
                )
            put_back(client)
        body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}
        assert client.post("/generate", json=body).status_code == 200


def test_no_request_of_the_document_breaks_the_server(fuzzed: ServerProcess) -> None:
    fuzz_all(fuzzed, examples=3)


@pytest.mark.long
@pytest.mark.parametrize("fuzzed", ["gr", "sglang"], indirect=True)
def test_many_requests_of_the_document_do_not_either(fuzzed: ServerProcess) -> None:
    fuzz_all(fuzzed, examples=30)
