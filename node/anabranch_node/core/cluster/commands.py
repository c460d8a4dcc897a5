"""What can be asked of the meta group. The same rules as for stream/commands.py: tags are never reused, fields only appended with defaults.

Before us: engine/cluster_flow.py, drivers/node.py and service/ make commands, the leader stamps `now_ms`. After us: machine.py applies them."""

from typing import Final

import msgspec
from msgspec import Struct


class InitCluster(Struct, frozen=True, array_like=True, tag=1, gc=False, forbid_unknown_fields=True):
    """The first command of a cluster. The same id again gets the same answer, another is refused.

    Registers the asking node in the same step: it has written down that it is node 1, so nobody else may get that number first."""

    cluster_id: str
    group_count: int
    replication_factor: int
    first: "RegisterNode"
    now_ms: int


class RegisterNode(Struct, frozen=True, array_like=True, tag=2, gc=False, forbid_unknown_fields=True):
    """A node says who and where it is, at each start. A new incarnation gets the next node id."""

    name: str
    incarnation: int
    boot: int
    client_address: str
    admin_address: str
    peer_address: str
    zone: str
    now_ms: int
    start_id: int = 0
    """Drawn by each process, so that two starts with the same boot number (one of a restored copy) are told apart."""


class PlaceMeta(Struct, frozen=True, array_like=True, tag=3, gc=False, forbid_unknown_fields=True):
    """A replica id for the meta group itself on that node."""

    node_id: int
    now_ms: int


class PlaceGroups(Struct, frozen=True, array_like=True, tag=4, gc=False, forbid_unknown_fields=True):
    """Replica ids for all data groups at once: `nodes[i]` are those of group i + 1, the preferred leader's first."""

    nodes: list[list[int]]
    now_ms: int


class BucketCreate(Struct, frozen=True, array_like=True, tag=5, gc=False, forbid_unknown_fields=True):
    """Answered by BucketState (made by this command if its `created_index` is its `meta_index`), or by TooManyBuckets."""

    bucket: str
    now_ms: int


class BucketDelete(Struct, frozen=True, array_like=True, tag=6, gc=False, forbid_unknown_fields=True):
    """The bucket is DELETING from now on, until all groups have said whether it is empty. Answered by BucketState, BucketAbsent or BucketReserved."""

    bucket: str
    now_ms: int


class BucketDeleted(Struct, frozen=True, array_like=True, tag=7, gc=False, forbid_unknown_fields=True):
    """Every group is fenced, and none has a stream of it. Without effect unless the bucket is DELETING since `index`."""

    bucket: str
    index: int
    now_ms: int


class BucketRestored(Struct, frozen=True, array_like=True, tag=8, gc=False, forbid_unknown_fields=True):
    """A group has a stream of it, so it is OPEN again. Without effect unless the bucket is DELETING since `index`."""

    bucket: str
    index: int
    now_ms: int


BucketCommand = BucketCreate | BucketDelete | BucketDeleted | BucketRestored
Command = InitCluster | RegisterNode | PlaceMeta | PlaceGroups | BucketCommand

_decoder: Final = msgspec.msgpack.Decoder(list[Command])


def decode_commands(payload: bytes) -> list[Command]:
    """Raises ValueError for anything but exactly a list of known commands."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"log entry payload of {len(payload)} bytes is not a list of cluster commands: {error}") from error
