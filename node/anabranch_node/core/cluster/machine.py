"""The state machine of group 0: the cluster's identity, its nodes and incarnations, replica ids and where they live; the buckets. Deterministic.

Before us: Raft committed the entry. After us: engine/cluster_flow.py of every node acts on the view. Replica ids are issued here, once, and never
again. The view is small (kilobytes), so it is immutable and each change replaces it; buckets may be many, and stand beside it (buckets.py).
Not here: moving replicas (a later part)."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from anabranch_node.core.cluster.buckets import Bucket, Buckets, place_behind, place_of
from anabranch_node.core.cluster.commands import (
    BucketCreate,
    BucketDelete,
    BucketDeleted,
    BucketRestored,
    Command,
    InitCluster,
    PlaceGroups,
    PlaceMeta,
    RegisterNode,
    decode_commands,
)
from anabranch_node.core.cluster.queries import Query
from anabranch_node.core.cluster.results import (
    BucketAbsent,
    BucketState,
    ClusterInitialized,
    ClusterRefusal,
    NodeRefused,
    NodeRegistered,
    Placed,
    Result,
)
from anabranch_node.core.cluster.view import ClusterView, GroupPlacement, NodeInfo, NodeState, ReplicaPlace
from anabranch_node.core.raft import entry
from anabranch_proto.formats import Damaged, NewerFormat
from anabranch_proto.ids import META_GROUP

SLICE_VERSION = 2
"""1 had no buckets."""
FIRST_NODE = 1
FIRST_REPLICA = 1
"""The meta group's first replica, on the node that was asked to init. Every other id is issued by the machine."""
_WHERE = "snapshot of the meta group"


class _State(Struct, frozen=True, array_like=True):
    version: int
    applied_index: int
    now_ms: int
    next_node: int
    next_replica: int
    view: ClusterView | None
    buckets: list[Bucket] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class FrozenMeta:
    """Everything in it is immutable already."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def slices(self, bytes_max: int) -> Iterator[bytes]:
        """Cut anywhere: restore() joins them first."""
        whole = _encode(self._state)
        for first in range(0, len(whole), bytes_max):
            yield whole[first : first + bytes_max]


class MetaMachine:
    def __init__(self) -> None:
        self.applied_index = 0
        self.now_ms = 0
        self.hot_bytes = 0
        self.watched: dict[str, Any] = {}
        self.woken: list[str] = []
        self._view: ClusterView | None = None
        self._next_node = FIRST_NODE + 1
        self._next_replica = FIRST_REPLICA + 1
        self._buckets = Buckets([])

    def apply(self, index: int, version: int, payload: bytes) -> list[Result]:
        if version == entry.COMMANDS_V1:
            return self.apply_commands(index, decode_commands(payload))
        if version not in (entry.NOOP, entry.CONFIG):
            raise ValueError(f"log entry {index} of the meta group has command version {version}: upgrade this node")
        return self.apply_commands(index, ())

    def apply_commands(self, index: int, commands: Sequence[Command]) -> list[Result]:
        assert index == self.applied_index + 1, (index, self.applied_index)
        results: list[Result] = []
        for command in commands:
            self.now_ms = max(self.now_ms, command.now_ms)
            results.append(self._apply(place_of(index, len(results)), command))
        self.applied_index = index
        return results

    def _apply(self, place: int, command: Command) -> Result:
        if isinstance(command, InitCluster):
            return self._init(place, command)
        view = self._view
        if view is None:
            return ClusterRefusal("the cluster is not initialised yet")
        if isinstance(command, RegisterNode):
            return self._register(view, command)
        if isinstance(command, PlaceMeta):
            return self._place_meta(view, command)
        if isinstance(command, PlaceGroups):
            return self._place_groups(view, command)
        buckets = self._buckets
        if isinstance(command, BucketCreate):
            return buckets.create(command, place, self.now_ms)
        if isinstance(command, BucketDelete):
            return buckets.delete(command, place)
        if isinstance(command, BucketDeleted):
            return buckets.deleted(command, place)
        assert isinstance(command, BucketRestored), command
        return buckets.restored(command, place)

    def _init(self, place: int, command: InitCluster) -> Result:
        view = self._view
        if view is None:
            if command.group_count < 1 or command.replication_factor not in (1, 3, 5, 7):
                return ClusterRefusal("a cluster has at least one group, and 1, 3, 5 or 7 replicas of each")
            meta = GroupPlacement(META_GROUP, [ReplicaPlace(FIRST_REPLICA, FIRST_NODE)])
            first = _info(FIRST_NODE, command.first, "active")
            self._view = ClusterView(1, command.cluster_id, command.group_count, command.replication_factor, [first], [meta])
            self._buckets.make_default(place, self.now_ms)
            return ClusterInitialized(command.cluster_id, command.group_count, command.replication_factor, created=True)
        if view.cluster_id != command.cluster_id:
            return ClusterRefusal(f"this is cluster {view.cluster_id}")
        return ClusterInitialized(view.cluster_id, view.group_count, view.replication_factor, created=False)

    def _register(self, view: ClusterView, command: RegisterNode) -> Result:
        known = next((node for node in view.nodes if node.incarnation == command.incarnation), None)
        if known is not None and known.name != command.name:
            return NodeRefused(f"this data directory belongs to node {known.node_id}, named {known.name}: a node keeps its name")
        if known is None:
            holder = next((node for node in view.nodes if node.name == command.name and node.state == "active"), None)
            state: NodeState = "active" if holder is None else "replacing"
            node = _info(self._next_node, command, state)
            self._next_node += 1
            self._change(view, nodes=[*view.nodes, node])
            return NodeRegistered(node.node_id, state)
        node = _info(known.node_id, command, known.state)
        # The same number is the same process asking again, or a restored copy that was started as often as the original.
        if command.boot < known.boot or (command.boot == known.boot and node != known):
            return NodeRefused(
                f"node {known.node_id} was already started for the {known.boot}th time, this is start {command.boot}: "
                "its data directory looks like an old copy and must not be used"
            )
        if node != known:
            self._change(view, nodes=[node if other.node_id == node.node_id else other for other in view.nodes])
        return NodeRegistered(node.node_id, node.state)

    def _place_meta(self, view: ClusterView, command: PlaceMeta) -> Result:
        if all(node.node_id != command.node_id or node.state != "active" for node in view.nodes):
            return ClusterRefusal(f"there is no node {command.node_id}")
        meta = view.groups[0]
        if any(place.node_id == command.node_id for place in meta.replicas):
            return Placed(changed=False)
        placed = GroupPlacement(META_GROUP, [*meta.replicas, ReplicaPlace(self._issue(), command.node_id)])
        self._change(view, groups=[placed, *view.groups[1:]])
        return Placed(changed=True)

    def _place_groups(self, view: ClusterView, command: PlaceGroups) -> Result:
        if len(view.groups) > 1:
            return Placed(changed=False)
        known = {node.node_id for node in view.nodes if node.state == "active"}
        if len(command.nodes) != view.group_count or any(
            len(set(nodes)) != view.replication_factor or not known.issuperset(nodes) for nodes in command.nodes
        ):
            return ClusterRefusal("the placement does not fit the cluster")
        groups = [
            GroupPlacement(number, [ReplicaPlace(self._issue(), node) for node in nodes]) for number, nodes in enumerate(command.nodes, start=1)
        ]
        self._change(view, groups=[view.groups[0], *groups])
        return Placed(changed=True)

    def _issue(self) -> int:
        self._next_replica += 1
        return self._next_replica - 1

    def _change(self, view: ClusterView, **changes: Any) -> None:
        self._view = msgspec.structs.replace(view, version=view.version + 1, **changes)

    # --- looking in --------------------------------------------------------------------------------------------------------------

    def view(self) -> ClusterView | None:
        return self._view

    def deleting(self) -> list[Bucket]:
        """For whoever leads this group: the deletes to be carried out (service/cross.py)."""
        return self._buckets.deleting()

    def query(self, query: Query, now_ms: int) -> BucketState | BucketAbsent | ClusterRefusal:
        if self._view is None:
            return ClusterRefusal("the cluster is not initialised yet")
        return self._buckets.look(query.bucket, place_behind(self.applied_index))

    def due(self, now_ms: int) -> list[Any]:
        return []

    def freeze(self) -> FrozenMeta:
        return FrozenMeta(self._state())

    def _state(self) -> _State:
        return _State(SLICE_VERSION, self.applied_index, self.now_ms, self._next_node, self._next_replica, self._view, self._buckets.rows())

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> "MetaMachine":
        """Raises Damaged or NewerFormat."""
        try:
            state = _decode(b"".join(chunks))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(_WHERE, f"does not decode: {error}") from error
        if state.version > SLICE_VERSION:
            raise NewerFormat(_WHERE, f"format {state.version} is newer than {SLICE_VERSION}; upgrade this node")
        machine = cls()
        machine.applied_index, machine.now_ms = state.applied_index, state.now_ms
        machine._next_node, machine._next_replica, machine._view = state.next_node, state.next_replica, state.view
        machine._buckets = Buckets(state.buckets)
        return machine

    def digest(self) -> bytes:
        return blake2b(_encode(self._state()), digest_size=16).digest()


def _info(node_id: int, command: RegisterNode, state: NodeState) -> NodeInfo:
    return NodeInfo(
        node_id,
        command.name,
        command.incarnation,
        command.boot,
        command.client_address,
        command.admin_address,
        command.peer_address,
        command.zone,
        state,
        command.start_id,
    )
