"""What a node does about the cluster, decided once per tick from the view and its own groups: pure. drivers/node.py carries it out.

Every node: creates the replicas that the view gives it, and learns where the others live. The leader of the meta group: lets that group grow to
min(replication factor, nodes), one replica at a time (issued, learner, caught up, voter), and places all data groups once enough nodes are there.
A leader that is not its group's preferred one hands over once that one is caught up, so that leaders are spread again after a restart.
One whose clock is more than 2 s off those of the other voters hands over to one whose clock is not.

The first start, safe at every crash: identity.json (node 1) is written; replica 1 of group 0 is created with itself as the only voter; InitCluster is
committed and registers that node as node 1. Whoever asked repeats the init until it was answered: each step that is done already is skipped."""

from dataclasses import dataclass, field

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.commands import Command, PlaceGroups, PlaceMeta
from anabranch_node.core.cluster.placement import Candidate, initial
from anabranch_node.core.cluster.view import ClusterView, GroupPlacement
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.progress import State
from anabranch_node.core.raft.raft import Raft, Role
from anabranch_node.engine.clocks import OURS
from anabranch_node.engine.group import Group
from anabranch_node.engine.host import Host
from anabranch_proto.ids import META_GROUP

SETTLE_MS = 1_000
"""The groups are placed once no node has joined for this long, so that all of a new cluster's nodes get their share."""
REPEAT_MS = 2_000
"""A proposal or change that shows no effect is made again after this."""
LED_MS = 5_000
"""A leader stays at least this long before it hands over to the preferred one."""
HAND_OVER_AGAIN_MS = 30_000
"""An attempt stops the group's writes until it succeeds or times out, so one that failed is not repeated soon."""
HAND_OVERS_PER_STEP_MAX = 2
NOBODY = 0


def caught_up(view: ClusterView, host: Host) -> bool:
    """The groups of the streams exist, and every replica of ours leads or hears its leader: from then on this node can serve. A node that was given
    no replica serves by forwarding."""
    if all(placement.group == META_GROUP for placement in view.groups):
        return False
    mine = [placement.group for placement in view.groups if any(place.node_id == host.me.node_id for place in placement.replicas)]
    return all(_follows(host.groups.get(group)) for group in mine)


def _follows(group: Group | None) -> bool:
    return group is not None and not group.fenced and group.raft.hears_leader() and group.raft.log.committed > 0


@dataclass(slots=True)
class FlowActions:
    proposals: list[Command] = field(default_factory=list)  # for group 0
    host_events: list[fx.Event] = field(default_factory=list)


class ClusterFlow:
    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._view_version = -1
        self._changed_ms = 0
        self._done_ms: dict[object, int] = {}
        self._led_since: dict[int, int] = {}

    def step(self, now_ms: int, view: ClusterView | None, host: Host) -> FlowActions:
        actions = FlowActions()
        if view is None:
            return actions
        if view.version != self._view_version:
            self._changed_ms = now_ms
            self._view_version = view.version
            self._learn(view, host, actions)
        meta = host.groups.get(META_GROUP)
        if meta is not None and not meta.fenced and meta.raft.role is Role.LEADER:
            self._lead_meta(now_ms, view, meta.raft, actions)
        self._spread_leaders(now_ms, view, host, actions)
        return actions

    def _once(self, what: object, now_ms: int) -> bool:
        if now_ms - self._done_ms.get(what, -REPEAT_MS) < REPEAT_MS:
            return False
        self._done_ms[what] = now_ms
        return True

    def _learn(self, view: ClusterView, host: Host, actions: FlowActions) -> None:
        incarnations = {node.node_id: node.incarnation for node in view.nodes}
        for placement in view.groups:
            for place in placement.replicas:
                if place.node_id in incarnations:
                    actions.host_events.append(fx.Route(place.replica, place.node_id, incarnations[place.node_id]))
            mine = next((place.replica for place in placement.replicas if place.node_id == self._node_id), None)
            held = host.groups.get(placement.group)
            if mine is None or (held is not None and held.replica >= mine):
                continue
            if placement.group == META_GROUP:
                actions.host_events.append(fx.ReplicaCreate(META_GROUP, mine, Configuration()))
            else:
                voters = tuple(place.replica for place in placement.replicas)
                actions.host_events.append(fx.ReplicaCreate(placement.group, mine, Configuration(voters), campaign=voters[0] == mine))

    def _lead_meta(self, now_ms: int, view: ClusterView, raft: Raft, actions: FlowActions) -> None:
        active = [node for node in view.nodes if node.state == "active"]
        meta = view.groups[0]
        wanted = min(view.replication_factor, len(active))
        if len(view.groups) == 1 and len(active) >= view.replication_factor and now_ms - self._changed_ms >= SETTLE_MS:
            if self._once("place groups", now_ms):
                nodes = [Candidate(node.node_id, node.zone) for node in active]
                actions.proposals.append(PlaceGroups(initial(nodes, view.group_count, view.replication_factor), 0))
        if raft.config.joint or raft.config_index > raft.log.committed or raft.log.committed < raft.term_start_index:
            return
        voters, learners = raft.config.voters, raft.config.learners
        placed = [place.replica for place in meta.replicas]
        for replica in placed:
            if replica not in voters and replica not in learners:
                if self._once(("learner", replica), now_ms):
                    actions.host_events.append(fx.ChangeMembers(NOBODY, META_GROUP, voters, (*learners, replica)))
                return
        for replica in learners:
            progress = raft.progress.get(replica)
            if progress is not None and progress.state is State.REPLICATE and progress.match >= raft.log.committed:
                if self._once(("voter", replica), now_ms):
                    rest = tuple(other for other in learners if other != replica)
                    actions.host_events.append(fx.ChangeMembers(NOBODY, META_GROUP, (*voters, replica), rest))
            return
        if len(placed) < wanted:
            holders = {place.node_id for place in meta.replicas}
            free = sorted(node.node_id for node in active if node.node_id not in holders)
            if free and self._once(("place meta", free[0]), now_ms):
                actions.proposals.append(PlaceMeta(free[0], 0))

    def _spread_leaders(self, now_ms: int, view: ClusterView, host: Host, actions: FlowActions) -> None:
        handed_over = 0
        for placement in view.groups:
            group = host.groups.get(placement.group)
            if group is not None and group.raft.role is Role.LEADER and not group.fenced and handed_over < HAND_OVERS_PER_STEP_MAX:
                handed_over += self._leave_to_a_better_clock(now_ms, placement, group.raft, host, actions)
            preferred = placement.replicas[0].replica
            if group is None or group.fenced or group.raft.role is not Role.LEADER or preferred == group.replica:
                self._led_since.pop(placement.group, None)
                continue
            raft = group.raft
            since = self._led_since.setdefault(placement.group, now_ms)
            progress = raft.progress.get(preferred)
            caught_up = progress is not None and progress.active and progress.state is State.REPLICATE and progress.match >= raft.log.committed
            if not caught_up or now_ms - since < LED_MS or preferred not in raft.config.voters or handed_over >= HAND_OVERS_PER_STEP_MAX:
                continue
            if host.clocks.strays(placement.replicas[0].node_id, _other_nodes(placement, self._node_id)):
                continue  # it would only hand over again
            if self._once(("hand over", placement.group), now_ms):
                handed_over += 1
                self._led_since[placement.group] = now_ms - LED_MS + HAND_OVER_AGAIN_MS
                actions.host_events.append(fx.TransferLeadership(NOBODY, placement.group, preferred))

    def _leave_to_a_better_clock(self, now_ms: int, placement: GroupPlacement, raft: Raft, host: Host, actions: FlowActions) -> bool:
        others = _other_nodes(placement, self._node_id)
        if not host.clocks.strays(OURS, others):
            return False
        for place in placement.replicas:
            progress = raft.progress.get(place.replica)
            if place.replica == raft.id or place.replica not in raft.config.voters or host.clocks.strays(place.node_id, others):
                continue
            if progress is not None and progress.active and progress.state is State.REPLICATE and progress.match >= raft.log.committed:
                if not self._once(("clock", placement.group), now_ms):
                    return False
                actions.host_events.append(fx.TransferLeadership(NOBODY, placement.group, place.replica))
                return True
        return False


def _other_nodes(placement: GroupPlacement, node_id: int) -> list[int]:
    return [place.node_id for place in placement.replicas if place.node_id != node_id]
