"""A trainer that pushes by itself, in a program of its own: as slime, miles, verl or hotswap does.

``python -m tests.process.push_trainer ORDER URL DIRECTORY VERSION [STOP_AFTER]``; each reply to a
chunk is a line of JSON on standard output. It says that it is ready, and begins with the first line
of its standard input; after ``STOP_AFTER`` chunks it stands still, until that ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.process.push_producer import (
    Named,
    Shared,
    checkpoint,
    chunks_of,
    say,
    sharing_as_sglang,
)

__all__ = ["CHUNKS", "ORDERS", "main"]

CHUNKS = 10
TOO_SOON_S = 0.003  # whether the first attempt was done, begun or not heard of is left open


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Ten chunks of a checkpoint, and the server that they go to."""

    http: httpx.Client
    shared: Shared
    chunks: list[Named]
    version: str
    stop_after: int

    def call(self, path: str, **body: object) -> Any:
        """A POST that has to succeed."""
        reply = self.http.post(path, json=body)
        assert reply.status_code == 200, (path, reply.text)
        return reply.json()

    def flush(self) -> None:
        """As slime and miles: GET until 200, at most 60 times."""
        assert any(self.http.get("/flush_cache").status_code == 200 for _ in range(60))

    def push_all(
        self, *, form: str = "flattened_bucket", again: bool = False, **fields: object
    ) -> None:
        """Each chunk, shared while its request runs and no longer."""
        for done, chunk in enumerate(self.chunks):
            if done == self.stop_after:
                sys.stdin.read()
            say(self.push(chunk, form=form, again=again, **fields))

    def again(self, path: str, **body: object) -> Any:
        """A POST that has to succeed, and whose reply was not waited for the first time."""
        with suppress(httpx.TimeoutException):
            self.http.post(path, json=body, timeout=TOO_SOON_S)
        return self.call(path, **body)

    def push(
        self, chunk: Named, *, form: str = "flattened_bucket", again: bool = False, **fields: object
    ) -> Any:
        """One chunk."""
        number, payloads = self.shared.share([chunk], form=form)
        load_format = None if form == "per_rank" else form
        body = {"serialized_named_tensors": payloads, "load_format": load_format, **fields}
        call = self.again if again else self.call
        reply = call("/update_weights_from_tensor", **body)
        left = self.shared.release(number)
        assert left == 0, f"{left} segments are left"
        return reply


def slime(trainer: Trainer) -> None:
    """Chunks by themselves, and an empty one that keeps its ranks in step."""
    trainer.call("/pause_generation")
    trainer.flush()
    trainer.push_all(flush_cache=False, weight_version=trainer.version)
    say(trainer.push([], flush_cache=False, weight_version=trainer.version))
    trainer.flush()
    trainer.call("/continue_generation")
    seen = trainer.http.get("/get_weight_version").json()["weight_version"]
    assert seen == trainer.version


def miles(trainer: Trainer) -> None:
    """A session without an id; the version is told before its end."""
    trainer.call("/pause_generation", mode="retract")
    trainer.flush()
    trainer.call("/begin_weight_update", selector="all")
    trainer.push_all(flush_cache=False, selector="all")
    trainer.call("/update_weight_version", new_version=trainer.version, abort_all_requests=False)
    assert trainer.http.get("/model_info").json()["weight_version"] != trainer.version
    ended = trainer.call("/end_weight_update")
    assert (ended["num_updates"], ended["missing"]) == (CHUNKS, [])
    trainer.call("/continue_generation")
    assert trainer.http.get("/model_info").json()["weight_version"] == trainer.version


def native(trainer: Trainer) -> None:
    """A session under an id, on a server that goes on serving; everything is sent twice."""
    named: dict[str, Any] = {"update_id": f"update-{trainer.version}"}
    for _ in range(2):
        assert trainer.call("/hotswap/v1/begin", **named)["update_id"] == named["update_id"]
    trainer.push_all(form="direct", **named)
    for chunk in trainer.chunks:
        assert trainer.push(chunk, **named)["repeated"] == len(chunk)
    epochs = {
        trainer.call(
            "/hotswap/v1/commit", **named, weight_version=trainer.version, pause_mode="retract"
        )["weight_epoch"]
        for _ in range(2)
    }
    assert len(epochs) == 1


def verl(trainer: Trainer) -> None:
    """Memory goes and comes back; what was not answered in time is sent again, all of it."""
    body = {"rid": "", "abort_all": True}
    assert trainer.http.post("/abort_request", json=body).status_code == 200
    trainer.flush()
    trainer.again("/release_memory_occupation", tags=["kv_cache", "weights"])
    trainer.again("/resume_memory_occupation", tags=["weights"])
    trainer.push_all(form="per_rank", again=True, flush_cache=False)
    trainer.flush()
    trainer.again("/resume_memory_occupation", tags=["kv_cache"])


ORDERS: Mapping[str, Callable[[Trainer], None]] = {
    "slime": slime,
    "miles": miles,
    "native": native,
    "verl": verl,
}


@contextmanager
def connected(url: str, directory: str, version: str, stop_after: int) -> Iterator[Trainer]:
    """A trainer, for as long as the block lasts."""
    with (
        sharing_as_sglang() as shared,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as http,
    ):
        yield Trainer(
            http=http,
            shared=shared,
            chunks=chunks_of(checkpoint(Path(directory)), CHUNKS),
            version=version,
            stop_after=stop_after,
        )


def main() -> None:
    """Run one order."""
    order, url, directory, version, *stop = sys.argv[1:]
    with connected(url, directory, version, int(stop[0]) if stop else -1) as trainer:
        say("ready")
        sys.stdin.readline()
        ORDERS[order](trainer)


if __name__ == "__main__":
    main()
