"""Pulls of published versions beside a server that serves."""

from hotswap.pulls.news import PullNews
from hotswap.pulls.puller import Puller

__all__ = ["PullNews", "Puller"]
