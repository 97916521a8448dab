"""An S3 store for tests: moto's server in a process of its own, with one bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tests.markdown_blocks import ROOT
from tests.untraced import UNTRACED

__all__ = ["BUCKET", "KEY", "SECRET", "access", "s3_server"]

BUCKET, KEY, SECRET = "weights", "tester", "hush-hush"
_REGION = "us-east-1"


@contextmanager
def s3_server() -> Iterator[str]:
    """Where it is, for as long as the context lasts; it has ``BUCKET``."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.process.s3_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **UNTRACED},
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        _make_bucket(endpoint)
        yield endpoint
        server.stdin.close()
        server.wait(30)


def access(endpoint: str, nowhere: Path) -> Mapping[str, str]:
    """What the environment of a trainer or a server says of the store, and nothing else does.

    ``nowhere`` is no file.
    """
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": _REGION,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(nowhere),
        "AWS_SHARED_CREDENTIALS_FILE": str(nowhere),
    }


def _make_bucket(endpoint: str) -> None:
    client = (
        import_module("botocore.session")
        .get_session()
        .create_client(
            "s3",
            endpoint_url=endpoint,
            region_name=_REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
