"""One line that says what an object is, for whoever reads a log or a debugger."""

from hotswap.http.in_flight import InFlightRequests
from hotswap.http.transcript import Transcript, finish_reason
from hotswap.seams import TokenChunk
from hotswap.types import WeightStamp


def test_requests_and_tickets() -> None:
    requests = InFlightRequests()
    with requests.reserve("r") as ticket:
        assert repr(requests) == "<InFlightRequests 1>"
        assert repr(ticket) == "<Ticket r waiting>"
        ticket.ended = True
        assert repr(ticket) == "<Ticket r ended>"
    requests.close()
    assert repr(requests) == "<InFlightRequests 0 closed>"


def test_transcript() -> None:
    transcript = Transcript(rid="r", prompt_tokens=1, stamp=WeightStamp(), decode=None)
    assert repr(transcript) == "<Transcript r 0 tokens running>"

    transcript.add(TokenChunk(token_id=5, stamp=WeightStamp(), finish_reason="length"))
    assert repr(transcript) == "<Transcript r 1 tokens length>"


def test_a_finish_reason_that_sglang_lacks_keeps_its_name() -> None:
    end = TokenChunk(token_id=None, stamp=WeightStamp(), finish_reason="preempted")

    assert finish_reason(end, 3) == {"type": "preempted"}
    assert finish_reason(None, 3) is None
