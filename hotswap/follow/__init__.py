"""A server that watches a stream of published versions and keeps itself current."""

from hotswap.follow.follower import FollowedServer, Follower
from hotswap.follow.options import CommitPace, FollowOptions
from hotswap.follow.status import FollowState, FollowStatus
from hotswap.follow.strategy import FOLLOW, with_follow

__all__ = [
    "FOLLOW",
    "CommitPace",
    "FollowOptions",
    "FollowState",
    "FollowStatus",
    "FollowedServer",
    "Follower",
    "with_follow",
]
