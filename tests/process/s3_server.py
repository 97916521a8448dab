"""An S3 server of moto's on a free port of loopback: ``python -m``; prints its port.

It lives until its standard input ends.
"""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Serve until whoever started this is gone."""
    server = import_module("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    _, port = server.get_host_and_port()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
