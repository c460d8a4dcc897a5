"""The simulated world: one heap of timed callbacks, nodes, network, clients, faults, and an operator that repairs what is lost. One seed, one
history.

run(): chaos with faults from faults.py, then everything is healed and must converge within a bound; then the client history is judged. Whatever goes
wrong is a Violation that names the seed. No clock, no hash order, no threads: the same seed gives the same events, which the running digest shows."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.cluster.view import ClusterView, GroupPlacement, NodeInfo, ReplicaPlace
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import Raft, Role
from anabranch_node.core.stream.queries import ReadAt
from anabranch_node.core.stream.results import ReadSlice
from anabranch_node.engine.host import NOBODY
from anabranch_proto.ids import META_GROUP
from tests.checkers import stream_checker
from tests.checkers.history import History
from tests.sim import resources
from tests.sim.chance import between
from tests.sim.clients import Client
from tests.sim.faults import Faults
from tests.sim.front_door import FrontDoor
from tests.sim.http_clients import BINARY, BUCKET, JSON, TEXT, Tailer, Writer
from tests.sim.invariants import Invariants
from tests.sim.operator import Operator
from tests.sim.sim_net import SimNet
from tests.sim.sim_node import CLUSTER_ID, SimNode
from tests.sim.swarm import SECOND, Swarm
from tests.sim.ttl_probe import TtlProbe

CONVERGE_US = 120 * SECOND
KEEP_UP_US = 60 * SECOND
KEEP_UP_ENTRIES = 30
RESTART_US = 30 * SECOND
PEACE_US = 8 * SECOND
_DIGEST_MASK = (1 << 61) - 1
_IS_A_BUG = re.compile(r"(?!Damaged|ForeignFormat|NewerFormat|FormatError)[A-Z]\w*: ")  # the name of an exception: not what a disk can do


class Violation(BaseException):
    """A promise is broken. Not an Exception, so that no handler of the code under test can swallow it."""


class _Asked(NamedTuple):
    client: Client | None  # None: nobody listens
    node: SimNode
    life: int
    request: Any


class World:
    def __init__(self, swarm: Swarm, trace: Callable[[str], None] | None = None) -> None:
        self.swarm = swarm
        self.rng = Random(swarm.seed)
        self._trace = trace
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self.now_us = 0
        self.digest = swarm.seed
        self.events = 0
        self.refused_frames = 0
        self.fences = 0
        self.incarnations = 0
        self.draining = False
        self.chaos_over = False
        self.history = History()
        self._time = 0
        self.members: dict[int, list[int]] = {}  # group -> replicas, as the operator last wanted them
        self._payloads = 0
        self._tokens = 0
        self._asked: dict[int, _Asked] = {}  # by token: what was not answered yet
        self.routes: dict[int, fx.Route] = {}  # by replica
        self.node_of: dict[int, int] = {}  # replica -> node
        self.lost_replicas: set[int] = set()  # on a disk that was lost or damaged
        self._replicas = 0
        self.net = SimNet(self)
        self.invariants = Invariants(self)
        self.nodes = {number: SimNode(self, number) for number in range(1, swarm.nodes + 1)}
        self.has_meta = swarm.bucket_share > 0
        self.groups = list(range(META_GROUP if self.has_meta else META_GROUP + 1, swarm.group_count + 1))
        self.placement = {group: sorted(self.rng.sample(list(self.nodes), swarm.replication)) for group in self.groups}
        self.group_of = {f"b/{group}-{number}": group for group in self.groups for number in range(swarm.streams_per_group)}
        self.streams = list(self.group_of)
        self.ghosts = {group: f"b/{group}-ghost" for group in self.groups}  # streams that nobody ever creates
        self.group_of.update({ghost: group for group, ghost in self.ghosts.items()})
        self.operator = Operator(self)
        self.faults = Faults(self)
        self.front_door = FrontDoor(self)
        self._routing: Routing | None = None
        self.calm = False  # the chaos is over, and all had the time to notice
        self.clients: list[Any] = []
        self.forks: dict[str, list[str]] = {}
        self.bucketed: list[str] = []
        self.buckets: list[str] = []
        if swarm.http:
            self._open_to_http()
        else:
            self.clients = [Client(self, number) for number in range(1, swarm.clients + 1)]

    def _open_to_http(self) -> None:
        """Streams by names that their groups' hash spreads; the first of each group is never deleted, and followed to its end."""
        swarm, rng = self.swarm, Random(f"streams {self.swarm.seed}")
        self.group_of, lasting, mortal = {}, [], []
        missing = {group: 1 + swarm.streams_per_group for group in self.groups if group != META_GROUP}
        for number in range(1_000):
            name = f"{BUCKET}s{number}"
            group = self.front_door.group_of(name)
            if missing[group]:
                missing[group] -= 1
                self.group_of[name] = group
                (mortal if missing[group] < swarm.streams_per_group else lasting).append(name)
        self.streams = [*lasting, *mortal]
        self.mortal = set(mortal)
        self.media = {name: rng.choice((JSON, BINARY, TEXT)) for name in self.streams}
        if swarm.fork_share:  # names that only forks are made under, in whichever group their hash says
            sources = self.streams[:]
            for number in range(4):
                name = f"{BUCKET}fork{number}"
                self.forks[name] = sources
                self.group_of[name] = self.front_door.group_of(name)
                self.media[name] = self.media[sources[number % len(sources)]]
                self.mortal.add(name)
                self.streams.append(name)
        if self.has_meta:
            self._open_buckets(rng)
        # Two or more follow the same stream: a crowd, if they meet at a node.
        tailers = [Tailer(self, 100 + number, rng.choice(mortal) if number % 3 == 2 else lasting[0]) for number in range(swarm.tailers)]
        self.clients = [*(Writer(self, number) for number in range(1, swarm.clients + 1)), *tailers]

    def _open_buckets(self, rng: Random) -> None:
        """Streams in buckets of their own, few in each, so that now and then one is empty; and a fork in one of them."""
        for number, name in enumerate(("left/only", "right/only", "both/one", "both/two")):
            self.media[name] = rng.choice((JSON, BINARY, TEXT))
            self.bucketed.append(name)
            if number == 3 and self.forks:
                self.forks[name] = self.streams
        for name in self.bucketed:
            self.group_of[name] = self.front_door.group_of(name)
            self.mortal.add(name)
            self.streams.append(name)
        self.buckets = ["_default", "none", *dict.fromkeys(name.partition("/")[0] for name in self.bucketed)]

    @property
    def tracing(self) -> bool:
        return self._trace is not None

    @property
    def clocks_are_sane(self) -> bool:
        return not any(self.swarm.skew_us) and "clock jump" not in self.swarm.faults

    @property
    def has_room(self) -> bool:
        """No touch is refused for want of room: the read would be answered all the same, and not count as use."""
        return self.swarm.host.raft.uncommitted_bytes_max >= 1 << 20 and self.swarm.service.served_max >= 1_000

    @property
    def long_poll_us(self) -> int:
        return self.swarm.service.live.long_poll_timeout_ms * 1_000

    # --- time --------------------------------------------------------------------------------------------------------------------

    def at(self, at_us: int, work: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at_us, self._order, work, args))

    def after(self, delay_us: int, work: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._order, work, args))

    def tick(self) -> int:
        """A time for the history: rises with every call."""
        self._time += 1
        return self._time

    def _run_until(self, stop_us: int, done: Callable[[], bool] | None = None) -> bool:
        heap = self._heap
        check_at = self.now_us
        while heap and heap[0][0] <= stop_us:
            now, order, work, args = heapq.heappop(heap)
            self.now_us = now
            self.digest = (self.digest * 1_000_003 ^ now ^ order << 20 ^ self.events) & _DIGEST_MASK
            work(*args)
            if done is not None and now >= check_at:
                check_at = now + SECOND // 5
                if done():
                    return True
        self.now_us = max(self.now_us, stop_us)
        return done is not None and done()

    # --- a run -------------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.operator.create_groups()
        for client in self.clients:
            self.after(self.rng.randint(1, SECOND), client.act)
        self.after(SECOND // 2, self.operator.work)
        if self.has_meta:  # a cluster is initialised in peace, or nothing else happens
            self._run_until(5 * SECOND, lambda: self.front_door.buckets.initialised)
        self.after(SECOND, self.faults.next)
        self._run_until(self.swarm.chaos_us)
        self.chaos_over = True
        self.faults.heal_all()
        if self.swarm.quorum_loss:
            self._run_until(self.now_us + 5 * SECOND)
            return
        self.note(0, "the chaos is over")
        self._run_until(self.now_us + SECOND)
        if self.swarm.can_keep_up and not self._run_until(self.now_us + KEEP_UP_US, self._keeps_up):
            raise self.violation(f"no fault for {KEEP_UP_US // SECOND} s, clients write on, and still {self._why_behind()}")
        if self.swarm.http and self.swarm.can_keep_up:
            self._work_in_peace()
        self.draining = True
        if not self._run_until(self.now_us + CONVERGE_US, self._converged):
            raise self.violation(f"no convergence within {CONVERGE_US // SECOND} s: {self._why_not()}")
        if self.swarm.final_power_loss:
            self.note(0, "all nodes lose power a last time")
            self.faults.count["power loss at the end"] += 1
            for node in self.nodes.values():
                self.faults.crash(node, power=True)
            if not self._run_until(self.now_us + RESTART_US, self._converged):
                raise self.violation(f"no convergence within {RESTART_US // SECOND} s of a restart of all nodes: {self._why_not()}")
        self._judge()

    def _work_in_peace(self) -> None:
        """Everybody keeps up and nothing breaks: what needs time is looked at now."""
        self.calm = True
        probes = [TtlProbe(self, 200 + number, f"ttl{number}") for number in range(2)] if self.clocks_are_sane and self.has_room else []
        for probe in probes:
            self.clients.append(probe)
            self.after(1, probe.act)
        self._run_until(self.now_us + PEACE_US, (lambda: all(probe.done for probe in probes)) if probes else None)

    def _keeps_up(self) -> bool:
        return not self._why_behind()

    def _why_behind(self) -> str:
        """While clients still write: does every voter follow its leader closely?"""
        for group in self.groups:
            leader = self.leader(group)
            if leader is None:
                return f"group {group} has no leader"
            for replica in leader.config.voters:
                held = self.nodes[self.node_of[replica]].host.groups.get(group)
                applied = held.raft.applied if held is not None and held.replica == replica and not held.fenced else -1
                if applied < leader.log.committed - KEEP_UP_ENTRIES:
                    return f"group {group} replica {replica} has applied {applied} of {leader.log.committed}"
        return ""

    def _converged(self) -> bool:
        return not self._why_not()

    def _why_not(self) -> str:
        for client in self.clients:
            if not client.idle:
                return f"client {client.number} still waits: {client.pending} {client.waiting}"
        for group in self.groups:
            leader = self.leader(group)
            if leader is None:
                return f"group {group} has no leader"
            config = leader.config
            nodes = sorted(self.node_of[replica] for replica in config.voters)
            if config.joint or config.learners or nodes != self.placement[group] or leader.config_index > leader.log.committed:
                return f"group {group} has configuration {config} on nodes {nodes}, wanted {self.placement[group]}"
            for replica in config.voters:
                held = self.nodes[self.node_of[replica]].host.groups.get(group)
                if held is None or held.replica != replica or held.fenced or held.raft.applied != leader.log.last_index:
                    state = held and (held.replica, held.fenced, held.raft.applied)
                    return f"group {group} replica {replica} is not caught up: {state}, the leader is at {leader.log.last_index}"
            machine = self.nodes[self.node_of[leader.id]].host.groups[group].machine
            if group == META_GROUP:
                if machine.deleting():
                    return f"the deletes of {machine.deleting()} are not decided"
            elif self.swarm.http and (machine.outbox or machine.pending_pins()):
                return f"group {group} still owes {machine.outbox}, and knows nothing of the forks of {machine.pending_pins()}"
        return self._unanswered() or next((busy for node in self.nodes.values() if (busy := resources.why_busy(node))), "")

    def _judge(self) -> None:
        finals: dict[str, bytes | None] = {}
        for group in self.groups:
            leader = self.leader(group)
            assert leader is not None
            machines = [self.nodes[self.node_of[replica]].host.groups[group].machine for replica in leader.config.voters]
            if len({machine.digest() for machine in machines}) != 1:
                raise self.violation(f"group {group}: replicas that applied the same log hold different states")
            if group == META_GROUP:
                self._judge_buckets(machines[0])
            elif self.swarm.http:
                self._judge_machine(group, machines[0])
            for stream in (stream for stream, at in self.group_of.items() if at == group):
                finals[stream] = _content(machines[0], stream)
        if self.swarm.http:
            self._judge_pins()
        wrong = self.front_door.judge.at_the_end()
        if wrong:
            raise self.violation(wrong)
        if self.swarm.http:
            return
        violations = stream_checker.check(self.history.ops, finals)
        if violations:
            raise self.violation(f"{len(violations)} in the history, first: {violations[0]}")

    def _judge_pins(self) -> None:
        """After quiet time nobody keeps anything for a fork that is not there, and every fork has its pin."""
        streams: dict[str, Any] = {}
        for group in self.front_door.timelines:
            leader = self.leader(group)
            assert leader is not None
            streams.update(self.nodes[self.node_of[leader.id]].host.groups[group].machine._table.streams)
        wanted, held = set(), set()
        for name, stream in streams.items():
            rare = stream.rare
            if rare is None:
                continue
            if rare.gone and rare.pins is None:
                raise self.violation(f"{name} was deleted and is kept for nobody")
            if rare.fork is not None:
                wanted.add((rare.fork.source, rare.fork.source_incarnation, rare.fork.uuid, name))
            held |= {(name, stream.incarnation, uuid, pin.fork) for uuid, pin in (rare.pins or {}).items()}
        if wanted != held:
            raise self.violation(f"forks without a pin: {sorted(wanted - held)}; pins without a fork: {sorted(held - wanted)}")

    def _judge_buckets(self, meta: Any) -> None:
        """After quiet time every bucket is there or is not, and every stream's is."""
        wanted = self.front_door.buckets.buckets()
        held = {row.name: (row.state, row.created_index, row.since_index, row.created_ms) for row in meta._buckets.rows()}
        made = {name: ("deleting" if it.deleting else "open", it.made, it.since, it.created_ms) for name, it in wanted.items()}
        if held != made:
            raise self.violation(f"the meta group holds {held}, its log makes {made}")
        streams = [name for timeline in self.front_door.timelines.values() for name in timeline.model.streams]
        lost = [name for name in streams if name.partition("/")[0] not in held]
        if lost:
            raise self.violation(f"there are {lost}, and not their buckets")

    def _judge_machine(self, group: int, machine: Any) -> None:
        """The state itself against the model that replayed the same log, stream by stream."""
        timeline = self.front_door.timelines[group]
        held = machine._table.streams
        if held.keys() != timeline.model.streams.keys() or machine.now_ms != timeline.model.clock:
            raise self.violation(f"group {group} holds {sorted(held)} at {machine.now_ms}, its log makes {sorted(timeline.model.streams)}")
        for name, wanted in timeline.model.streams.items():
            stream = held[name]
            content = b"".join(message.body for start, _, message in wanted.placed() if start >= wanted.earliest)
            found = (stream.incarnation, stream.content_type, stream.rare is not None and stream.rare.closed)
            if found != (wanted.incarnation, wanted.content_type, wanted.closed) or _content(machine, name) not in (content, None):
                raise self.violation(f"group {group}: {name} is {found}, its log makes something else")

    # --- what happened -----------------------------------------------------------------------------------------------------------

    def note(self, node: int, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now_us / SECOND:9.4f} s  {f'node {node}' if node else 'world':8}  {text}")

    def violation(self, text: str) -> Violation:
        self.note(0, f"VIOLATION {text}")
        return Violation(f"seed {self.swarm.seed}, at {self.now_us / SECOND:.3f} s: {text}")

    def payload(self, size: int) -> bytes:
        """Unique, and no payload is a prefix of another."""
        self._payloads += 1
        return f"{self._payloads:08d}".encode() + bytes(max(0, size - 8))

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def ask(self, node: SimNode, request: fx.Propose | fx.Read | fx.ChangeMembers | fx.TransferLeadership, client: Client | None) -> None:
        """The request is at the node: from now on it owes exactly one answer, as long as it lives."""
        if self.swarm.http:  # as in production: nobody waits for the operator's orders
            node.push(replace(request, token=NOBODY))
            return
        self._asked[request.token] = _Asked(client, node, node.boots, request)
        node.push(request)

    def answer(self, node: SimNode, token: int, result: Any) -> None:
        if token == NOBODY:
            return
        asked = self._asked.pop(token, None)
        if asked is None or asked.node is not node or asked.life != node.boots:
            raise self.violation(f"node {node.number} answers token {token}, which it was not asked or has answered before: {result}")
        if asked.client is not None:
            self.after(between(self.rng, self.swarm.net_delay_us), asked.client.heard, token, result, node.number)

    def _unanswered(self) -> str:
        for token, asked in list(self._asked.items()):
            if asked.node.up and asked.node.boots == asked.life:
                return f"node {asked.node.number} never answered {asked.request}"
            del self._asked[token]  # it died with the process
        return ""

    def fenced(self, node: SimNode, effect: fx.GroupFenced) -> None:
        self.note(node.number, f"group {effect.group} is fenced: {effect.reason}")
        self.fences += 1
        if not node.damaged:
            raise self.violation(f"node {node.number} fenced group {effect.group} on an undamaged disk: {effect.reason}")
        if not any(name in effect.reason for name in node.damaged_files) or _IS_A_BUG.match(effect.reason):
            raise self.violation(f"node {node.number} fenced group {effect.group} for something else than its disk ({node.damaged}): {effect.reason}")
        self.lost_replicas.add(effect.replica)

    def stopped(self, node: SimNode, effect: fx.StopNode) -> None:
        self.note(node.number, f"stops: {effect.reason}")
        if not node.may_stop(effect.reason):
            raise self.violation(f"node {node.number} stopped without a reason: {effect.reason}")
        self.crashed(node)

    def crashed(self, node: SimNode) -> None:
        """The process ended by itself or in the middle of a file operation."""
        self.faults.crash(node, power=self.rng.random() < 0.5)

    def lose_disk(self, node: SimNode) -> None:
        """The node comes back with an empty disk, as another incarnation: its replicas are lost for ever."""
        self.lost_replicas.update(replica for replica, at in self.node_of.items() if at == node.number)
        node.fresh_disk()
        node.start()

    def committed(self, group: int, index: int, entry: bytes) -> None:
        """For the first time, anywhere."""
        if group == META_GROUP:
            self.front_door.meta_committed(index, entry)
        elif self.swarm.http:
            self.front_door.committed(group, index, entry)

    # --- looking around ----------------------------------------------------------------------------------------------------------

    def routing(self) -> Routing | None:
        """Where the groups live, as a node is told that asks now. None: nobody has placed them yet."""
        if not self.members or (self.has_meta and not self.front_door.buckets.initialised):
            return None
        nodes = [
            NodeInfo(node.number, f"n{node.number}", node.identity.incarnation, node.boots, "", "", "", "", "active") for node in self.nodes.values()
        ]
        groups = [GroupPlacement(group, [ReplicaPlace(replica, self.node_of[replica]) for replica in self.members[group]]) for group in self.groups]
        return Routing(ClusterView(self.events, CLUSTER_ID, self.swarm.group_count, self.swarm.replication, nodes, groups))

    def new_replica(self, node: SimNode) -> int:
        self._replicas += 1
        replica = self._replicas
        route = fx.Route(replica, node.number, node.identity.incarnation)
        self.routes[replica] = route
        self.node_of[replica] = node.number
        if node.damaged:
            self.lost_replicas.add(replica)  # who knows what else is rotten there
        for other in self.nodes.values():
            if other.up:
                other.push(route)
        return replica

    def create_replica(self, node: SimNode, group: int, replica: int, config: Configuration) -> None:
        self.note(node.number, f"gets replica {replica} of group {group}")
        node.push(fx.ReplicaCreate(group, replica, config))

    def leader(self, group: int) -> Raft | None:
        """The live leader of the highest term, as only we can see it."""
        best: Raft | None = None
        for node in self.nodes.values():
            held = node.host.groups.get(group) if node.up and not node.paused else None
            if held is not None and not held.fenced and held.raft.role is Role.LEADER and (best is None or held.raft.term > best.term):
                best = held.raft
        return best

    def holds(self, group: int, replica: int, index: int, term: int) -> bool:
        """Is that entry on that replica's disk? A lost replica is not asked: what it once acknowledged is the loss that we allow."""
        if replica in self.lost_replicas:
            return True
        return self.nodes[self.node_of[replica]].has_durable(group, replica, index, term)


def _content(machine: Any, stream: str) -> bytes | None:
    pieces = []
    held = machine._table.streams.get(stream)
    offset = 0 if held is None else max(held.earliest, held.base)
    while True:
        found = machine.query(ReadAt(stream, offset, 1 << 20), 0)
        if not isinstance(found, ReadSlice):
            return None
        pieces.append(found.data)
        offset = found.next_offset
        if found.up_to_date:
            return b"".join(pieces)
