"""Handles of another process's device memory: read exactly, and let go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotswap.wire import FLATTENED, decode, opened, payload_bytes

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SENDER = """
import sys, torch
from hotswap.wire import flattened_bucket
tensors = [("a", torch.arange(7, dtype=torch.uint8, device="cuda")),
           ("b", torch.arange(6, dtype=torch.bfloat16, device="cuda").view(2, 3).t())]
with flattened_bucket(tensors) as text:
    print(text, flush=True)
    sys.stdin.read()
"""


def test_a_bucket_of_another_process() -> None:
    with subprocess.Popen([sys.executable, "-c", SENDER], cwd=ROOT, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as sender:  # fmt: skip
        assert sender.stdout is not None
        sent = decode(payload_bytes(sender.stdout.readline().strip()), load_format=FLATTENED)
        for _ in range(3):
            with opened(sent) as payloads:
                got = {name: payload.cpu() for name, payload in payloads.items()
                       if isinstance(payload, torch.Tensor)}  # fmt: skip
            assert torch.equal(got["a"], torch.arange(7, dtype=torch.uint8))
            wanted = torch.arange(6, dtype=torch.bfloat16).view(2, 3).t()
            assert torch.equal(got["b"], wanted)
        assert sender.stdin is not None
        sender.stdin.close()
    assert sender.returncode == 0
