"""A few nodes, each the whole service over a disk that syncs at once, and a network that a test cuts by hand. No sockets, no threads, no clock.

Group 0 is the meta group with the real MetaMachine; the view, which no test here changes, is told to all by hand.

The tests of the service say what a client asks and what it is answered; frames, syncs and turns in between happen here."""

from collections import deque
from random import Random
from typing import Any

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.commands import InitCluster, RegisterNode
from anabranch_node.core.cluster.machine import MetaMachine
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.cluster.view import ClusterView, GroupPlacement, NodeInfo, ReplicaPlace
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.engine import envelope
from anabranch_node.engine.group import GroupOptions
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.engine.meta_codec import META
from anabranch_node.service.effects import (
    Abort,
    Ask,
    Begin,
    Broadcast,
    End,
    FramesDropped,
    Piece,
    RequestArrived,
    RequestGone,
    Respond,
    Taken,
    Told,
)
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import Service, ServiceOptions
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.wal import Wal
from anabranch_node.web.request import Head, Kind, Request, parse
from anabranch_proto.ids import META_GROUP, NodeIdentity

TICK_MS = 50
START_MS = 1_800_000_000_000
GROUP = 1


class Node:
    def __init__(self, world: "World", number: int, boot: int = 1) -> None:
        self.world = world
        self.identity = NodeIdentity("c1", number, 0xA0 + number)
        self.wal = Wal(self.identity, WalOptions(segment_bytes=4 << 20))
        options = HostOptions(raft=RaftOptions(election_ticks=10, heartbeat_ticks=2), group=GroupOptions(command_bytes_max=1_000_000))
        self.host = Host(self.identity, options, StreamMachine, Random(number), boot, self.wal, MetaMachine)
        self.service = Service(self.host, world.options, META)
        self.service.routing = Routing(world.view)
        self.skew_ms = 0
        self.up = True
        self.disk_stalls = False
        self.inbox: list[Any] = []
        self.answers: dict[int, bytes] = {}
        self.streams: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.aborted: set[int] = set()
        self.clients_take = True
        """Whether the clients take the pieces of a paced response as they come."""
        self.told: dict[int, Any] = {}
        self.turns_wanted = 0
        """Turns that the service asked for because it has more to do."""
        self.host.start([], {}, {})
        for placement in world.view.groups:
            voters = tuple(place.replica for place in placement.replicas)
            for place in placement.replicas:
                self.inbox.append(fx.Route(place.replica, place.node_id, 0xA0 + place.node_id))
                if place.node_id == number:
                    self.inbox.append(fx.ReplicaCreate(placement.group, place.replica, Configuration(voters), campaign=voters[0] == place.replica))

    def turn(self) -> None:
        events, self.inbox = self.inbox, []
        for effect in self.service.turn(self.world.now_ms + self.skew_ms, events):
            if isinstance(effect, fx.SendFrame):
                if not self.world.carry(self.identity.node_id, effect):
                    self.inbox.append(self.world.dropped(effect))
            elif isinstance(effect, Respond):
                self.answers[effect.token] = effect.data
            elif isinstance(effect, Begin):
                self.streams[effect.token] = effect.data
                if effect.paced and self.clients_take:
                    self.inbox.append(Taken(effect.token))
            elif isinstance(effect, Piece):
                self.streams[effect.token] += effect.data
                if self.clients_take:
                    self.inbox.append(Taken(effect.token))
            elif isinstance(effect, Abort):
                self.aborted.add(effect.token)
            elif isinstance(effect, Broadcast | End):
                for token in effect.tokens:
                    self.streams[token] = self.streams.get(token, b"") + effect.data
                if isinstance(effect, End):
                    self.ended.update(effect.tokens)
            elif isinstance(effect, Told):
                self.told[effect.token] = effect.result
            elif isinstance(effect, fx.TurnAgain):
                self.turns_wanted += 1
        if self.wal.ticket > self.wal.synced_ticket and not self.disk_stalls:
            self.inbox.append(fx.Synced(self.wal.ticket))


class World:
    """Groups 0 to `groups` have replicas on `holders`, the preferred leader's first (with `spread` another one for each); `extra` nodes none."""

    def __init__(self, holders: int = 3, extra: int = 0, options: ServiceOptions | None = None, groups: int = 1, spread: bool = False) -> None:
        self.options = options or ServiceOptions(live=LiveOptions(long_poll_timeout_ms=1_000, sse_keep_alive_ms=500, sse_rotate_ms=60_000))
        self.now_ms = START_MS
        numbers = range(1, holders + extra + 1)
        nodes = [NodeInfo(number, f"n{number}", 0xA0 + number, 1, "", "", "", "", "active") for number in numbers]
        placements = []
        for group in range(groups + 1):
            places = [ReplicaPlace(10 * group + number, number) for number in range(1, holders + 1)]
            shift = max(0, group - GROUP) % holders if spread else 0
            placements.append(GroupPlacement(group, places[shift:] + places[:shift]))
        self.view = ClusterView(1, "c1", groups, min(3, holders), nodes, placements)
        self.wire: deque[tuple[int, int, bytes]] = deque()
        self.cut: set[tuple[int, int]] = set()
        """(from, to): frames are taken and lost, nobody notices."""
        self.broken: set[tuple[int, int]] = set()
        """(from, to): there is no connection, so a frame is not even taken."""
        self.held: list[tuple[int, int, bytes]] = []
        self.hold: set[tuple[int, int]] = set()
        """(from, to): frames wait in `held` until release()."""
        self.token = 0
        self.nodes = {number: Node(self, number) for number in numbers}
        self.ticks(40)
        first = RegisterNode("n1", 0xA1, 1, "", "", "", "", 0)
        assert self.told(1, META_GROUP, True, InitCluster("c1", groups, 1, first, 0)).created

    def carry(self, source: int, effect: fx.SendFrame) -> bool:
        way = (source, effect.node)
        if way in self.broken:
            return False
        if way in self.hold:
            self.held.append((*way, effect.data))
        elif way not in self.cut:
            self.wire.append((*way, effect.data))
        return True

    def dropped(self, effect: fx.SendFrame) -> FramesDropped:
        return FramesDropped(effect.node, envelope.requests_in(effect.data))

    def release(self) -> None:
        self.wire.extend(self.held)
        self.held.clear()
        self.hold.clear()
        self.settle()

    def settle(self) -> None:
        """Turns and frames until nobody has anything to do."""
        for _ in range(1_000):
            busy = [node for node in self.nodes.values() if node.inbox and node.up]
            for node in busy:
                node.turn()
            while self.wire:
                source, to, data = self.wire.popleft()
                if self.nodes[to].up:
                    self.nodes[to].inbox.append(fx.FrameReceived(source, data))
                    busy.append(self.nodes[to])
            if not busy:
                return
        raise AssertionError("the nodes do not come to rest")

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += TICK_MS
            for node in self.nodes.values():
                if node.up:
                    node.inbox.append(fx.Tick())
            self.settle()

    @property
    def leader(self) -> int:
        return self.leader_of(GROUP)

    def leader_of(self, group: int) -> int:
        (leader,) = [number for number, node in self.nodes.items() if node.up and group in node.host.leads()]
        return leader

    def follower(self) -> int:
        return next(number for number, node in self.nodes.items() if node.up and GROUP in node.host.groups and GROUP not in node.host.leads())

    # --- a client ----------------------------------------------------------------------------------------------------------------

    def ask(self, number: int, method: str, target: str, body: bytes = b"", **headers: str) -> int:
        """Send a request to a node, without waiting for its answer. Header names are written with underscores."""
        raw = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        path = target if target.startswith("/") else f"/v1/stream/{target}"
        request = parse(Head(method.encode(), path.encode(), [(b"host", b"h"), *raw]))
        return self.send(number, request, body)

    def send(self, number: int, request: Request, body: bytes = b"") -> int:
        self.token += 1
        self.nodes[number].inbox.append(RequestArrived(self.token, request, body))
        return self.token

    def leave(self, number: int, token: int) -> None:
        self.nodes[number].inbox.append(RequestGone(token))

    def do(self, number: int, method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
        """The answer of what needs no more time than a heartbeat takes to tell a follower what is committed."""
        return self.answer(number, self.ask(number, method, target, body, **headers))

    def answer(self, number: int, token: int, ticks_max: int = 20) -> bytes:
        self.settle()
        for _ in range(ticks_max):
            if token in self.nodes[number].answers:
                break
            self.ticks(1)
        return self.nodes[number].answers[token]

    def bucket(self, number: int, kind: Kind, bucket: str, **fields: Any) -> bytes:
        return self.answer(number, self.send(number, Request(kind, bucket=bucket, **fields)))

    def told(self, number: int, group: int, write: bool, payload: Any) -> Any:
        """What that node is told that asks a group for itself."""
        self.token += 1
        self.nodes[number].inbox.append(Ask(self.token, group, write, payload))
        self.settle()
        self.ticks(3)
        return self.nodes[number].told[self.token]

    def create(self, target: str = "s", **headers: str) -> None:
        assert status(self.do(self.leader, "PUT", target, content_type="text/plain", **headers)) == 201

    def append(self, number: int, body: bytes, target: str = "s") -> bytes:
        return self.do(number, "POST", target, body, content_type="text/plain")


def status(answer: bytes) -> int:
    return int(answer[9:12])
