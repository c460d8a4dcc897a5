"""What became of a cluster command: typed values. Tags are never reused and differ from core/errors.py: results travel to forwarding nodes."""

from typing import ClassVar

from msgspec import Struct


class ClusterInitialized(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """`created` is False for a repeated init."""

    cluster_id: str
    group_count: int
    replication_factor: int
    created: bool


class NodeRegistered(Struct, frozen=True, array_like=True, tag=2, gc=False):
    node_id: int
    state: str


class Placed(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Replica ids were issued, or had been before."""

    changed: bool


class ClusterRefusal(Struct, frozen=True, array_like=True, tag=10, gc=False):
    """Nothing happened, and this is why."""

    definite: ClassVar[bool] = True
    reason: str

    def __str__(self) -> str:
        return self.reason


class NodeRefused(Struct, frozen=True, array_like=True, tag=11, gc=False):
    """This data directory must not be used, now or later: whoever runs on it stops."""

    definite: ClassVar[bool] = True
    reason: str

    def __str__(self) -> str:
        return self.reason


Result = ClusterInitialized | NodeRegistered | Placed | ClusterRefusal | NodeRefused
