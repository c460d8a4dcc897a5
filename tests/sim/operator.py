"""The simulator's stand-in for placement: it knows where each group should live and brings it there, one small step per pass, through the nodes' own
commands.

A replica that is missing, fenced or lost gets a successor with a new id: learner, caught up, then one joint change that swaps it in. What left the
configuration is destroyed. Like the real one it may be interrupted anywhere: it decides by what it sees, not by what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.commands import InitCluster, RegisterNode
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import Raft
from anabranch_node.core.stream.commands import BucketOpen
from anabranch_proto.ids import META_GROUP
from tests.sim.swarm import SECOND

if TYPE_CHECKING:
    from tests.sim.world import World


class Operator:
    def __init__(self, world: World) -> None:
        self._world = world
        self._successor: dict[tuple[int, int], int] = {}  # (group, node) -> replica id on its way in
        self.changes = 0

    def create_groups(self) -> None:
        world = self._world
        for group in world.groups:
            replicas = {number: world.new_replica(world.nodes[number]) for number in world.placement[group]}
            config = Configuration(tuple(sorted(replicas.values())))
            world.members[group] = list(config.voters)
            for number, replica in replicas.items():
                world.create_replica(world.nodes[number], group, replica, config)

    def work(self) -> None:
        world = self._world
        for group in world.groups:
            leader = world.leader(group)
            if leader is not None:
                self._step(group, leader)
                if not world.has_meta:
                    self._open_buckets(group, leader)
                elif group == META_GROUP:
                    self._init(leader)
        if world.swarm.http:
            self._spread_the_word()
        world.after(SECOND // 2, self.work)

    def _open_buckets(self, group: int, leader: Raft) -> None:
        """There is no meta group here that could be asked: the bucket of all streams is told to be open, until the group knows it."""
        world = self._world
        node = world.nodes[world.node_of[leader.id]]
        opened = node.host.groups[group].machine._table.fences.opened  # type: ignore[attr-defined]
        for bucket in sorted({name.partition("/")[0] for name in world.streams} - opened.keys()):
            world.ask(node, fx.Propose(world.token(), group, BucketOpen(bucket, 0, 0)), None)

    def _init(self, leader: Raft) -> None:
        """As the first node does, again and again until it is done. Who is where the nodes are told by us, not by the meta group."""
        world = self._world
        node = world.nodes[world.node_of[leader.id]]
        if node.host.groups[META_GROUP].machine.view() is None:  # type: ignore[attr-defined]
            first = RegisterNode("n1", 1, 1, "", "", "", "", 0)
            world.ask(node, fx.Propose(world.token(), META_GROUP, InitCluster("sim", world.swarm.group_count, 1, first, 0)), None)

    def _spread_the_word(self) -> None:
        """Views travel at their own pace: a node may know an old placement for long, and must find its way all the same."""
        for node in self._world.nodes.values():
            if node.up and (node.service.routing is None or self._world.rng.random() < 0.1):
                node.service.routing = self._world.routing()

    def _step(self, group: int, leader: Raft) -> None:
        world = self._world
        config = leader.config
        if config.joint or leader.config_index > leader.log.committed:
            return
        self._destroy_leftovers(group, config)
        place = world.placement[group]
        keepers = {
            world.node_of[replica]: replica for replica in config.voters if world.node_of[replica] in place and not self._is_gone(group, replica)
        }
        leavers = [replica for replica in config.voters if replica not in keepers.values()]
        arrivals = [self._incoming(group, number) for number in place if number not in keepers]
        learners = [replica for replica in arrivals if replica is not None]
        voters = list(config.voters)
        ready = next((replica for replica in learners if self._may_vote(replica, config, leader)), None)
        if ready is not None:
            # One change: the one that comes for the one that goes, so that there are never fewer voters on the way.
            learners.remove(ready)
            voters.append(ready)
            if leavers:
                voters.remove(min(leavers, key=lambda replica: not self._is_gone(group, replica)))
        elif not arrivals:
            voters = list(keepers.values())
        wanted = Configuration(tuple(sorted(voters)), (), tuple(sorted(learners)))
        if wanted != config:
            self.changes += 1
            world.members[group] = list(wanted.voters)
            world.note(0, f"group {group}: {config} -> {wanted}")
            world.ask(world.nodes[world.node_of[leader.id]], fx.ChangeMembers(world.token(), group, wanted.voters, wanted.learners), None)

    def _may_vote(self, replica: int, config: Configuration, leader: Raft) -> bool:
        """Caught up; and not on a damaged disk, which would use up what the group can still lose (after the chaos all damage has been looked at)."""
        if replica not in config.learners or leader.progress[replica].match < leader.log.committed:
            return False
        return replica not in self._world.lost_replicas or self._world.chaos_over or self._world.swarm.quorum_loss

    def _is_gone(self, group: int, replica: int) -> bool:
        """Fenced, or not there although its node is up."""
        world = self._world
        node = world.nodes[world.node_of[replica]]
        if world.routes[replica].incarnation != node.identity.incarnation:
            return True
        if not node.up:
            return False
        held = node.host.groups.get(group)
        return held is None or held.replica != replica or bool(held.fenced)

    def _incoming(self, group: int, number: int) -> int | None:
        """The new replica for that node, made if need be. None: not now."""
        world = self._world
        node = world.nodes[number]
        replica = self._successor.get((group, number))
        if replica is not None and not self._is_gone(group, replica):
            return replica
        if not node.up or node.paused:
            return None
        replica = self._successor[group, number] = world.new_replica(node)
        world.create_replica(node, group, replica, Configuration())
        return None

    def _destroy_leftovers(self, group: int, config: Configuration) -> None:
        world = self._world
        for node in world.nodes.values():
            held = node.host.groups.get(group) if node.up and not node.paused else None
            if held is None or held.replica in config.members():
                continue
            if self._successor.get((group, node.number)) == held.replica and node.number in world.placement[group]:
                continue  # on its way in
            node.push(fx.ReplicaDestroy(group, held.replica))
