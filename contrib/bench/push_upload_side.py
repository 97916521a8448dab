"""The least that an upload costs: a Starlette app that counts the bytes of a body.

``python -m contrib.bench.push_upload_side PORT``, with the same server under it as hotswap's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.typing import Framework
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

__all__ = ["app", "main"]


async def _count(request: Request) -> JSONResponse:
    count = 0
    async for piece in request.stream():
        count += len(piece)
    return JSONResponse({"bytes": count})


def app() -> Starlette:
    """One route."""
    return Starlette(routes=[Route("/upload", _count, methods=["POST"])])


def main(port: int) -> None:
    """Serve on loopback until killed."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = None
    asyncio.run(serve(cast(Framework, app()), config))


if __name__ == "__main__":
    main(int(sys.argv[1]))
