"""Results of submitted requests are kept by count, bytes and age."""

import json
from typing import Any

import anyio

from hotswap.http.in_flight import InFlightRequests
from hotswap.http.submissions import Result, Submissions
from hotswap.http.transcript import Transcript
from hotswap.http.transcription import Transcription
from hotswap.seams import GenerateRequest
from hotswap.testing.rig import settle
from hotswap.testing.scripted_engine import ScriptedGeneration
from hotswap.types import WeightStamp


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """Submissions whose every request ends at once."""

    def __init__(self, **bounds: Any) -> None:
        self.clock = Clock()
        self.requests = InFlightRequests()
        self.submissions = Submissions(clock=self.clock, **bounds)

    async def add(self, rid: str, tokens: bytes = b"x") -> Result:
        ticket = self.requests.reserve(rid)
        submission = self.submissions.expect(ticket)
        request = GenerateRequest(rid=rid, input_ids=[1])
        generation = ScriptedGeneration(request, WeightStamp())
        generation.emit(tokens)
        generation.finish("length")
        transcript = Transcript(rid=rid, prompt_tokens=1, stamp=WeightStamp(), decode=None)
        begun = Transcription(ticket, generation, transcript)
        self.submissions.begin(submission, begun, failed=lambda error: (500, {}))
        await submission.over.wait()
        found = self.submissions.find(rid)
        assert isinstance(found, Result)
        return found

    @property
    def rids(self) -> list[str]:
        return [rid for rid, _ in self.submissions]


async def test_results_are_bounded_by_count() -> None:
    kept = Kept(max_results=2)
    for rid in "abc":
        await kept.add(rid)

    assert kept.rids == ["b", "c"]
    assert repr(kept.submissions) == "<Submissions 0 live, 2 results>"


async def test_results_are_bounded_by_bytes_but_the_newest_is_kept() -> None:
    kept = Kept(max_bytes=2000)
    for rid in "ab":
        await kept.add(rid)
    large = await kept.add("c", tokens=b"x" * 2000)

    assert len(large.body) > 2000
    assert json.loads(large.body)["meta_info"]["completion_tokens"] == 2000
    assert kept.rids == ["c"]
    await kept.add("d")
    assert kept.rids == ["d"]


async def test_results_are_bounded_by_age() -> None:
    kept = Kept(max_age_s=10)
    await kept.add("a")
    kept.clock.now = 6
    await kept.add("b")
    kept.clock.now = 10
    assert kept.rids == ["b"]
    kept.clock.now = 16
    assert kept.submissions.find("b") is None
    assert len(kept.submissions) == 0


async def test_all_is_read_once_everybody_has_asked() -> None:
    kept = Kept(max_results=2)
    with anyio.fail_after(0):
        await kept.submissions.all_read()
    done = anyio.Event()

    async def wait() -> None:
        await kept.submissions.all_read()
        done.set()

    async with anyio.create_task_group() as tasks:
        running = kept.submissions.expect(kept.requests.reserve("running"))
        results = [await kept.add(rid) for rid in "abc"]
        tasks.start_soon(wait)
        # The first of them had to go, and nobody can read it any more.
        for result in results[1:]:
            await settle()
            assert not done.is_set()
            kept.submissions.note_read(result)
            kept.submissions.note_read(result)
        await settle()
        assert not done.is_set()
        kept.submissions.drop(running)
    assert done.is_set()
