"""Servers whose pulls are cut short: killed, or refused by the disk, at chosen calls to it.

After each the directory holds a whole version or says that it does not, what was live is
live, and the next pull gives the exact bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from hotswap.stream import Keep, pull
from hotswap.stream.state import Reserved
from hotswap.testing.server import ServerProcess
from tests.markdown_blocks import ROOT
from tests.process import pull_faults
from tests.process.forked_server import ForkedServer
from tests.process.published_checkpoints import publish_checkpoints
from tests.unit.stream.faulty_disk import FaultyDisk
from tests.unit.stream.streams import contents_of

__all__ = ["Cut", "Rig"]

LIMIT_S = 60.0
KILLED = -9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A pull from ``start`` (None: into nothing) to ``target``, ``share`` of its calls in."""

    start: int | None
    target: int
    share: float


class Rig:
    """A base, a stream with versions ``b``, ``a``, ``b``, and one local checkpoint at a time.

    ``keep`` is how servers pull: not to a log, which they write into the files when they like.
    """

    def __init__(self, root: Path, a: Path, b: Path, *, keep: Keep = Keep.FILES) -> None:
        self.keep = keep
        self.base = a
        self.checkpoints = [a, b, a, b]
        self.source = publish_checkpoints(
            root / "source", self.checkpoints, ("xor", "overwrite", "gap")
        )
        self.local = root / "copies" / "local"
        self.local.parent.mkdir()
        self.plan = root / "plan.json"
        self.counted = root / "counted"

    def calls(self, cut: Cut) -> int:
        """How many calls to the disk the pull of ``cut`` makes."""
        where = self.counted / f"{cut.start}-{cut.target}"
        if cut.start is not None:
            self._pull_into(where, cut.start, FaultyDisk())
        counting = FaultyDisk()
        self._pull_into(where, cut.target, counting)
        return len(counting.calls)

    def _pull_into(self, local: Path, target: int, disk: FaultyDisk) -> None:
        pull(
            local,
            self.source,
            target,
            base_dir=self.base,
            threads=1,
            disk=disk,
            keep=self.keep,
        )

    @contextmanager
    def server(self, hook: str = pull_faults.HOOK) -> Iterator[ServerProcess]:
        """One whose pulls use the calls to the disk in the order that they are counted in."""
        arguments = (
            *("--local-root", str(self.local.parent), "--pull-threads", "1"),
            *("--custom-pull-weights-pre-read-hook", hook),
            *("--local-checkpoint", self.keep.value),
        )
        environ = {"PYTHONPATH": str(ROOT)}
        with ForkedServer(
            self.base, *arguments, environ={**environ, **pull_faults.environ(self.plan)}
        ) as process:
            yield process

    def pull(self, http: httpx.Client, target: int, *, local: Path | None = None) -> httpx.Response:
        """``/pull_weights``."""
        body = {
            "local_checkpoint_dir": str(local or self.local),
            "source_dir": str(self.source),
            "target_version": target,
        }
        return http.post("/pull_weights", json=body)

    def reach(self, http: httpx.Client, target: int) -> Any:
        """A pull that has to succeed, byte for byte."""
        reply = self.pull(http, target)
        assert reply.status_code == 200, reply.text
        assert contents_of(self.local) == contents_of(self.checkpoints[target])
        assert not Reserved(self.local).is_pending
        return reply.json()

    def kill(self, cuts: Iterable[Cut]) -> list[str]:
        """Kill a server in each of ``cuts``; how the next one reached the target of each."""
        modes, after = list[str](), None
        for cut in [*cuts, None]:
            with self.server() as process, process.client(timeout_s=LIMIT_S) as http:
                if after is not None:
                    modes.append(self._check_after(http, after))
                    # What was loaded from there is no longer tied to those files.
                    maps = Path(f"/proc/{process.pid}/maps").read_text()
                    assert str(self.local.parent) not in maps
                if cut is not None:
                    self._kill_in(process, http, cut)
            after = cut
        return modes

    def _kill_in(self, process: ServerProcess, http: httpx.Client, cut: Cut) -> None:
        calls = self.calls(cut)
        self._begin(http, cut)
        pull_faults.arm(self.plan, at=int(cut.share * calls))
        try:
            reply = self.pull(http, cut.target)
        except httpx.TransportError:
            assert process.wait() == KILLED
        else:
            raise AssertionError(f"{cut}: was answered {reply.status_code} {reply.text}")

    def _begin(self, http: httpx.Client, cut: Cut) -> None:
        if cut.start is None:
            assert not self.local.exists() or not Reserved(self.local).state.exists()
        else:
            self.reach(http, cut.start)

    def _check_after(self, http: httpx.Client, cut: Cut) -> str:
        """A new server: what lies there is whole or refused, and the next pull is exact."""
        whole = contents_of(self.base)
        if Reserved(self.local).is_pending or cut.start is None:
            reply = http.post("/update_weights_from_disk", json={"model_path": str(self.local)})
            assert (reply.status_code, reply.json()["success"]) != (200, True), cut
        else:
            # Before the journal nothing was written, after it everything.
            held = contents_of(self.local)
            assert held in [contents_of(self.checkpoints[v]) for v in (cut.start, cut.target)]
        assert live(http) is None
        mode = self.reach(http, cut.target)["mode"]
        assert whole == contents_of(self.base)
        load = {"model_path": str(self.local), "weight_version": str(cut.target)}
        assert http.post("/update_weights_from_disk", json=load).json()["success"] is True
        assert str(live(http)) == str(cut.target)
        return str(mode)

    def refuse(self, http: httpx.Client, cut: Cut, code: int) -> Any:
        """The disk refuses from ``cut`` on; what the server says of it."""
        calls = self.calls(cut)
        self._begin(http, cut)
        before = checksums(http)
        pull_faults.arm(self.plan, at=int(cut.share * calls), code=code)
        reply = self.pull(http, cut.target)
        said = reply.json()
        assert (reply.status_code, said["success"]) == (500, False), said
        name = "disk_full" if code in (errno.ENOSPC, errno.EDQUOT) else "local_disk_failed"
        assert said["error"]["code"] == name
        if said["local_version"] is not None:
            held = self.checkpoints[said["local_version"]]
            assert contents_of(self.local) == contents_of(held)
            assert said["message"].endswith(f"holds version {said['local_version']}, whole")
        assert checksums(http) == before
        assert http.get("/health").status_code == 200
        self.reach(http, cut.target)
        return said


def live(http: httpx.Client) -> Any:
    """The version of the live weights; None for those that the server was started with."""
    return http.get("/get_weight_version").json()["weight_version"]


def checksums(http: httpx.Client) -> Any:
    """Of the live weights."""
    return http.post("/weights_checker", json={"action": "checksum"}).json()
