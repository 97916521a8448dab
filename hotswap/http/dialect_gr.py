"""GR's dialect: NVIDIA's generative-recommender serving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from starlette.responses import Response

from hotswap.admission import WhilePaused
from hotswap.http.errors import Wire, error_body, wire_of
from hotswap.http.replies import Json
from hotswap.http.weight_rows import tensor_pieces

__all__ = ["GrDialect"]


class GrDialect:
    """Satisfies ``Dialect``: every error is ``{"error": {code, message, retryable, status}}``."""

    name = "gr"
    while_paused = WhilePaused.REJECT
    boot_version: str | None = None
    temperature: float = 0.0
    aborts_by_prefix = False
    generate_timeout_s: float = 300.0

    def __repr__(self) -> str:
        return "<GrDialect>"

    def own_meta(
        self, rid: str, reply: Mapping[str, object], *, score: float | None
    ) -> dict[str, object]:
        """GR's names of what is there already; there is one beam, whose text is the reply's."""
        tokens, finish = reply["output_ids"], _finish(reply["meta_info"])
        beam = {
            "output_ids": tokens,
            "text": "",
            "meta_info": {"finish_reason": finish, "sequence_score": score},
        }
        return {"request_id": rid, "token_ids": tokens, "beam_width": 1, "beam_results": [beam]}

    def health(self, body: Mapping[str, object], *, status: int) -> Response:
        """JSON."""
        return Json(body, status_code=status)

    def wire(self, error: Exception) -> Wire:
        """As GR's table says."""
        return wire_of(error)

    def error_body(
        self, error: Exception, *, wire: Wire, reports_success: bool
    ) -> dict[str, object]:
        """GR's envelope."""
        return error_body(error, wire=wire, reports_success=reports_success)

    def stream_error(self, error: Exception) -> dict[str, object]:
        """The same envelope as that of a reply."""
        return error_body(error, wire=self.wire(error), reports_success=False)

    def weight_pieces(self, tensor: torch.Tensor) -> Iterator[bytes]:
        """``{"parameter": [[...]]}``."""
        yield b'{"parameter":'
        yield from tensor_pieces(tensor)
        yield b"}"

    def updated(self, *, source: str, version: str | None) -> str:
        """One sentence, whatever the version."""
        return "Succeeded to update model weights from disk."

    def pushed(self, *, version: str | None) -> str:
        """One sentence, whatever the version."""
        return "Succeeded to update model weights from tensor."

    def flushed(self, entries: int) -> Response:
        """JSON."""
        return Json({"success": True, "entries_cleared": entries, "message": "Cache flushed."})

    def memory_moved(self, body: Mapping[str, object]) -> Response:
        """JSON."""
        return Json(body)

    def flush_refused(self, error: Exception) -> Response:
        """GR's envelope, with a 400 where another route would answer 409."""
        wire = self.wire(error)
        if wire.status == 409:
            # Trainers poll this route until 200 and know no other refusal than 400.
            wire = replace(wire, status=400)
        body = error_body(error, wire=wire, reports_success=True)
        return Json(body, status_code=wire.status)


def _finish(meta: object) -> str | None:
    """One word, as a beam of GR has it, of SGLang's object."""
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    return reason.get("type") if isinstance(reason, dict) else None
