"""What became of a cluster command: typed values. Tags are never reused and differ from core/errors.py: results travel to forwarding nodes."""

from typing import ClassVar, Literal

from msgspec import Struct

from anabranch_node.core.errors import Failure

BucketStateName = Literal["open", "deleting"]


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


class BucketState(Struct, frozen=True, array_like=True, tag=20, gc=False):
    """A bucket as of `meta_index`: the place in the meta group's log of the command that was answered, or the end of what a look has seen
    (buckets.place_of)."""

    bucket: str
    state: BucketStateName
    created_index: int
    """Which bucket of that name it is."""
    since_index: int
    """The place of the command that brought it into that state."""
    meta_index: int
    created_ms: int


class BucketAbsent(Failure, frozen=True, tag=21):
    bucket: str
    meta_index: int

    def __str__(self) -> str:
        return f"bucket {self.bucket} does not exist"


class BucketReserved(Failure, frozen=True, tag=22):
    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket} cannot be deleted"


class TooManyBuckets(Failure, frozen=True, tag=23):
    bucket: str
    buckets_max: int

    def __str__(self) -> str:
        return f"there are {self.buckets_max} buckets already"


# What the service makes of a BucketState; these do not travel.


class BucketExists(Failure, frozen=True):
    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket} exists already"


class BucketDeleting(Failure, frozen=True):
    """Or it changes so fast that no look at it was still true when it was used."""

    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket} is being deleted; nothing happened"


class BucketNotEmpty(Failure, frozen=True):
    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket} is not empty"


BucketResult = BucketState | BucketAbsent | BucketReserved | TooManyBuckets
Result = ClusterInitialized | NodeRegistered | Placed | ClusterRefusal | NodeRefused | BucketResult
