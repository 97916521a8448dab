"""The HTTP edge: it translates, it holds no logic."""

from __future__ import annotations

from hotswap.http.app import create_app
from hotswap.http.routes import Kind, KindedRoute

__all__ = ["Kind", "KindedRoute", "create_app"]
