"""What can be asked of the meta group without changing it: each passes a ReadIndex, then machine.query() answers from applied state.

Tags are never reused: queries travel to other nodes, too. The view is asked for by a call of the peer plane (drivers/node.py), not by a query."""

from msgspec import Struct


class BucketLook(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Answered by BucketState or BucketAbsent, as of the applied index that they name."""

    bucket: str


Query = BucketLook
