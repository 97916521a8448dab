"""Pulls of published versions beside a server that serves."""

from hotswap.pulls.news import PullNews
from hotswap.pulls.puller import Puller, on_the_loop

__all__ = ["PullNews", "Puller", "on_the_loop"]
