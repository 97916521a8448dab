"""As much of S3 as streams ask for, out of a folder: ``python -m`` FOLDER.

Prints its port, and lives until its standard input ends. It takes whoever asks for whom he says he
is, and sends files as the kernel can: a server for tests copies a whole object for each range of
it, and would be all that is measured. ``/-/most`` says how many reads were under way at once, at
most, since it was asked last.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["serve"]

_CHUNK = 2**20
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class _Reads:
    """How many are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self._most = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self._now += 1
            self._most = max(self._most, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1

    def taken(self) -> int:
        """The most so far; it begins anew."""
        with self._lock:
            most, self._most = self._most, self._now
        return most


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads = _Reads()
        super().__init__(("127.0.0.1", 0), _Requests)


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else what follows a head waits for the client to have seen it
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        path, query = self._asked()
        if self.path == "/-/most":
            self._answer(200, json.dumps({"most": self.server.reads.taken()}).encode())
        elif "list-type" in query:
            self._answer(200, self._listing(path, query.get("prefix", "")))
        else:
            with self.server.reads.one():
                self._send(path)

    def do_HEAD(self) -> None:
        path, _ = self._asked()
        if path.is_file():
            self._head(200, path, path.stat().st_size)
        else:
            self._answer(404, b"")

    def do_PUT(self) -> None:
        path, query = self._asked()
        if "uploadId" in query:
            path = self._part(query["uploadId"], query["partNumber"])
        elif self.headers.get("If-None-Match") == "*" and path.exists():
            self._receive(Path(os.devnull))
            self._answer(412, _error("PreconditionFailed"))
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{secrets.token_hex(4)}.tmp")
        self._receive(unfinished)
        unfinished.rename(path)
        self._answer(200, b"", ETag=_tag(path))

    def do_POST(self) -> None:
        path, query = self._asked()
        self._receive(Path(os.devnull))
        if "uploads" in query:
            upload = secrets.token_hex(8)
            text = f"<InitiateMultipartUploadResult {_NAMESPACE}><UploadId>{upload}</UploadId>"
            self._answer(200, f"{text}</InitiateMultipartUploadResult>".encode())
            return
        parts = self._part(query["uploadId"], "1").parent
        path.parent.mkdir(parents=True, exist_ok=True)
        first, *others = sorted(parts.iterdir())
        with first.open("ab") as whole:
            for other in others:
                with other.open("rb") as part:
                    shutil.copyfileobj(part, whole, _CHUNK)
        first.rename(path)
        shutil.rmtree(parts)
        text = f"<CompleteMultipartUploadResult {_NAMESPACE}><ETag>{_tag(path)}</ETag>"
        self._answer(200, f"{text}</CompleteMultipartUploadResult>".encode())

    def do_DELETE(self) -> None:
        self._asked()[0].unlink(missing_ok=True)
        self._answer(204, b"")

    def _asked(self) -> tuple[Path, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, True).items()}
        return self.server.folder / unquote(parts.path).strip("/"), query

    def _part(self, upload: str, number: str) -> Path:
        return self.server.folder / ".uploads" / upload / f"{int(number):05d}"

    def _receive(self, path: Path) -> None:
        left = int(self.headers.get("Content-Length") or 0)
        with path.open("wb") as file:
            while left:
                piece = self.rfile.read(min(left, _CHUNK))
                file.write(piece)
                left -= len(piece)

    def _send(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404, _error("NoSuchKey"))
            return
        size = path.stat().st_size
        begin, end = 0, size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked:
            begin, end = int(asked[1]), min(size, int(asked[2]) + 1)
        told = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if asked else {}
        self._head(206 if asked else 200, path, end - begin, **told)
        self.wfile.flush()
        with path.open("rb") as file:
            while begin < end:
                begin += os.sendfile(self.connection.fileno(), file.fileno(), begin, end - begin)

    def _head(self, status: int, path: Path, length: int, **told: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", _tag(path))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, status: int, body: bytes, **told: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _listing(self, bucket: Path, prefix: str) -> bytes:
        names = (str(one.relative_to(bucket)) for one in bucket.rglob("*") if one.is_file())
        found = sorted(name for name in names if name.startswith(prefix))
        keys = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{(bucket / name).stat().st_size}</Size>"
            f"<ETag>{_tag(bucket / name)}</ETag></Contents>"
            for name in found
        )
        return f"<ListBucketResult {_NAMESPACE}>{keys}</ListBucketResult>".encode()


def _tag(path: Path) -> str:
    status = path.stat()
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def serve(folder: Path) -> None:
    """Until the standard input ends."""
    server = _Server(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
