"""The cluster as every node must know it: nodes, their addresses, and where each group's replicas live. Cut from the meta group's state.

Nodes without a replica of that group are sent it; all keep the last one they saw, as a hint to find the others after a restart."""

from typing import Final, Literal

import msgspec
from msgspec import Struct

NodeState = Literal["active", "replacing"]


class NodeInfo(Struct, frozen=True, array_like=True, gc=False):
    node_id: int
    name: str
    incarnation: int
    boot: int
    client_address: str
    admin_address: str
    peer_address: str
    zone: str
    state: NodeState
    start_id: int = 0


class ReplicaPlace(Struct, frozen=True, array_like=True, gc=False):
    replica: int
    node_id: int


class GroupPlacement(Struct, frozen=True, array_like=True, gc=False):
    """The first replica is the preferred leader."""

    group: int
    replicas: list[ReplicaPlace]


class ClusterView(Struct, frozen=True, array_like=True):
    """`version` rises with every change of it."""

    version: int
    cluster_id: str
    group_count: int
    replication_factor: int
    nodes: list[NodeInfo]
    groups: list[GroupPlacement]


encode_view: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(ClusterView)


def decode_view(data: bytes) -> ClusterView:
    """Raises msgspec.MsgspecError."""
    return _decoder.decode(data)
