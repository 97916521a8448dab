"""``make lint``: every public symbol of hotswap has a type that a checker can read.

``basedpyright --verifytypes`` says which have none. It is pyright with its program and
node in wheels of their own, so that no network is needed when it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent

KNOWN = {
    # Its base class is known everywhere else; the checker loses it in this module alone.
    "hotswap.engine.model_plan.ModelPlan",
    "hotswap.engine.model_plan.plan_model",
}


def main() -> int:
    """0 when every type is known; else 1, and a line for each that is not."""
    report = verified()
    found = [
        f"{symbol['name']}: {' '.join(fault['message'].split())}"
        for symbol in report["symbols"]
        if symbol["name"] not in KNOWN
        for fault in symbol["diagnostics"]
        if fault["severity"] == "error"
    ]
    for line in found:
        print(line)
    counted = len(report["symbols"])
    print(f"verify_types: {counted} public symbols, {len(found)} without a complete type")
    if counted < 1000:
        print("verify_types: wanted all of hotswap; is it installed?", file=sys.stderr)
        return 1
    return 1 if found else 0


def verified() -> dict[str, Any]:
    """What the checker says of the package ``hotswap`` in this tree."""
    environ = {
        **os.environ,
        # It looks for types where the first python on PATH does, and at PYTHONPATH.
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [BIN / "basedpyright", "--verifytypes", "hotswap", "--ignoreexternal", "--outputjson"],
        capture_output=True,
        text=True,
        env=environ,
        cwd=ROOT,
        check=False,
    )
    found: dict[str, Any] = json.loads(ran.stdout)["typeCompleteness"]
    return found


if __name__ == "__main__":
    sys.exit(main())
