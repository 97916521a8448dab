"""``python -m hotswap`` is the ``hotswap`` command."""

from __future__ import annotations

import sys

from hotswap.cli import main

sys.exit(main())
