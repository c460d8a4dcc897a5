"""A request's life by hand: nodes with a service each, frames carried when told to. What the simulator found by seed stands here by name."""

from random import Random
from typing import Any

import pytest

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.cluster.view import ClusterView, GroupPlacement, NodeInfo, ReplicaPlace
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.engine.group import GroupOptions
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.engine.meta_codec import META
from anabranch_node.service import effects as sx
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import Service, ServiceOptions
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.wal import Wal
from anabranch_node.web.request import Head, parse
from anabranch_proto.ids import NodeIdentity
from tests.checkers.opened import OpenedMachine

HOST = HostOptions(raft=RaftOptions(election_ticks=10, heartbeat_ticks=2), group=GroupOptions(command_bytes_max=1_000_000))
OPTIONS = ServiceOptions(request_timeout_ms=5_000, live=LiveOptions(long_poll_timeout_ms=2_000, sse_keep_alive_ms=2_000, sse_rotate_ms=4_000))
TICK_MS = 50


class Node:
    def __init__(self, number: int, boot: int = 1, options: ServiceOptions = OPTIONS) -> None:
        self.me = NodeIdentity("c1", number, number * 10)
        self.wal = Wal(self.me, WalOptions(segment_bytes=4 << 20))
        self.host = Host(self.me, HOST, OpenedMachine, Random(number), boot, self.wal)
        self.host.start([], {}, {})
        self.service = Service(self.host, options, META)
        self.wall_ahead_ms = 0
        self.said: list[Any] = []


class Cluster:
    """Node 1 holds the only replica of the only group; the others hold nothing and forward."""

    def __init__(self, nodes: int = 2, options: ServiceOptions = OPTIONS) -> None:
        self.now_ms = 1_000_000
        self.options = options
        self.nodes = {number: Node(number, options=options) for number in range(1, nodes + 1)}
        self.cut = False
        self.held: list[tuple[int, fx.SendFrame]] = []
        self._tokens = 0
        infos = [NodeInfo(node.me.node_id, "", node.me.incarnation, 1, "", "", "", "", "active") for node in self.nodes.values()]
        self.routing = Routing(ClusterView(1, "c1", 1, 1, infos, [GroupPlacement(0, []), GroupPlacement(1, [ReplicaPlace(7, 1)])]))
        for node in self.nodes.values():
            node.service.routing = self.routing
            self.turn(node, fx.Route(7, 1, 10))
        self.turn(self.nodes[1], fx.ReplicaCreate(1, 7, Configuration((7,))))
        self.run_for(3_000)
        assert self.nodes[1].host.leads() == [1]

    def turn(self, node: Node, *events: Any) -> None:
        """One turn, the disk's answers to it, and the frames to the others (or to `held`, while `cut`)."""
        effects = node.service.turn(self.now_ms + node.wall_ahead_ms, events)
        again = False
        for effect in effects:
            if isinstance(effect, fx.SendFrame):
                self.held.append((node.me.node_id, effect))
            elif isinstance(effect, sx.Respond | sx.Begin | sx.Broadcast | sx.End):
                node.said.append(effect)
            again = again or isinstance(effect, fx.TurnAgain)
        if again:
            self.turn(node)
        while node.wal.ticket > node.wal.synced_ticket:
            self.turn(node, fx.Synced(node.wal.ticket))
        if not self.cut:
            self.deliver()

    def deliver(self) -> None:
        while self.held:
            src, frame = self.held.pop(0)
            if frame.node in self.nodes:
                self.turn(self.nodes[frame.node], fx.FrameReceived(src, frame.data))

    def run_for(self, duration_ms: int) -> None:
        for _ in range(duration_ms // TICK_MS):
            self.now_ms += TICK_MS
            for node in self.nodes.values():
                self.turn(node, fx.Tick())

    def ask(self, number: int, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"") -> int:
        self._tokens += 1
        raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        request = parse(Head(method.encode(), f"/v1/stream/{target}".encode(), raw))
        self.turn(self.nodes[number], sx.RequestArrived(self._tokens, request, body))
        return self._tokens

    def create(self, name: str = "s", **headers: str) -> None:
        token = self.ask(1, "PUT", name, {"content-type": "text/plain", **{key.replace("_", "-"): value for key, value in headers.items()}})
        assert self.status(1, token) == 201

    def append(self, body: bytes, name: str = "s") -> None:
        token = self.ask(1, "POST", name, {"content-type": "text/plain"}, body)
        assert self.status(1, token) == 204

    def said(self, number: int, token: int) -> list[Any]:
        return [
            effect
            for effect in self.nodes[number].said
            if (token in effect.tokens if isinstance(effect, sx.Broadcast | sx.End) else effect.token == token)
        ]

    def status(self, number: int, token: int) -> int | None:
        said = self.said(number, token)
        return int(said[0].data.split(b" ", 2)[1]) if said else None

    def kinds(self, number: int, token: int) -> list[str]:
        return [type(effect).__name__ for effect in self.said(number, token)]


# --- what is asked of other nodes ---------------------------------------------------------------------------------------------------


def test_a_client_that_left_leaves_nothing_behind_at_the_forwarding_node() -> None:
    cluster = Cluster()
    cluster.create()
    cluster.cut = True
    token = cluster.ask(2, "POST", "s", {"content-type": "text/plain"}, b"x")
    cluster.held.clear()  # lost, and nobody says so
    cluster.turn(cluster.nodes[2], sx.RequestGone(token))
    assert not cluster.nodes[2].service.forwarding._asked


def test_a_forwarded_write_that_its_leader_cannot_commit_in_time_is_unknown_never_refused() -> None:
    cluster = Cluster()
    cluster.create()
    leader = cluster.nodes[1]
    cluster.turn(leader, fx.Route(8, 3, 30), fx.ChangeMembers(0, 1, (7, 8), ()))  # from here on nothing can be committed
    token = cluster.ask(2, "POST", "s", {"content-type": "text/plain"}, b"x")
    before = leader.host.groups[1].raft.log.last_index
    cluster.run_for(300)
    for _ in range(6):
        cluster.now_ms += 1_000
        cluster.turn(leader)
    cluster.turn(leader, fx.Tick())  # its time runs out before it can lose its office
    assert cluster.said(2, token)[0].data.startswith(b"HTTP/1.1 503")
    assert b"outcome_unknown" in cluster.said(2, token)[0].data
    assert leader.host.groups[1].raft.log.last_index == before, "and nobody proposed it again"


def test_an_answer_to_an_earlier_boot_is_no_answer_to_this_one() -> None:
    cluster = Cluster()
    cluster.create()
    cluster.cut = True
    cluster.ask(2, "POST", "s", {"content-type": "text/plain"}, b"x")
    question = cluster.held.pop()[1]
    cluster.turn(cluster.nodes[1], fx.FrameReceived(2, question.data))
    late_answer = cluster.held.pop()[1]
    restarted = cluster.nodes[2] = Node(2, boot=2)
    restarted.service.routing = cluster.routing
    token = cluster.ask(2, "GET", "s?offset=-1")
    cluster.turn(restarted, fx.FrameReceived(1, late_answer.data))
    assert cluster.said(2, token) == [], "that was for a request of the process before"
    cluster.deliver()
    assert cluster.status(2, token) == 200


def test_a_long_poll_waits_at_a_node_without_a_replica_too() -> None:
    cluster = Cluster()
    cluster.create()
    token = cluster.ask(2, "GET", "s?offset=now&live=long-poll")
    cluster.run_for(1_000)
    assert cluster.said(2, token) == []
    cluster.append(b"at last")
    assert cluster.said(2, token)[0].data.endswith(b"at last")
    token = cluster.ask(2, "GET", "s?offset=now&live=long-poll")
    cluster.run_for(OPTIONS.live.long_poll_timeout_ms + 2 * TICK_MS)
    assert cluster.status(2, token) == 204
    assert [node.service.pending for node in cluster.nodes.values()] == [0, 0]


# --- time ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_is_set_moves_no_deadline(jump_s: int) -> None:
    cluster = Cluster()
    cluster.create()
    poll, live = cluster.ask(1, "GET", "s?offset=now&live=long-poll"), cluster.ask(1, "GET", "s?offset=now&live=sse")
    cluster.cut = True
    forwarded = cluster.ask(2, "POST", "s", {"content-type": "text/plain"}, b"x")
    cluster.held.clear()
    for node in cluster.nodes.values():
        node.wall_ahead_ms += jump_s * 1_000
    cluster.run_for(200)
    assert cluster.said(1, poll) == [] and cluster.said(2, forwarded) == []
    assert cluster.kinds(1, live) == ["Begin"]
    cluster.run_for(OPTIONS.request_timeout_ms)
    assert cluster.status(1, poll) == 204
    assert cluster.status(2, forwarded) == 503
    assert cluster.kinds(1, live)[-1] == "End"
    assert [node.service.pending for node in cluster.nodes.values()] == [0, 0]


# --- live responses end once, and are forgotten -----------------------------------------------------------------------------------


def test_a_live_response_that_was_rotated_is_forgotten() -> None:
    cluster = Cluster()
    cluster.create()
    for number in (1, 2):
        token = cluster.ask(number, "GET", "s?offset=-1&live=sse")
        cluster.run_for(5_000)
        assert cluster.kinds(number, token)[0] == "Begin"
        assert cluster.kinds(number, token)[-1] == "End"
        assert cluster.nodes[number].service.pending == 0
        cluster.append(b"later")
        cluster.run_for(3_000)
        assert cluster.kinds(number, token).count("End") == 1
        assert cluster.kinds(number, token)[-1] == "End", "nothing is said after the end"


def test_a_live_response_of_a_closed_stream_is_forgotten() -> None:
    cluster = Cluster()
    cluster.create()
    token = cluster.ask(1, "GET", "s?offset=-1&live=sse")
    assert cluster.status(1, cluster.ask(1, "POST", "s", {"stream-closed": "true"})) == 204
    assert cluster.kinds(1, token) == ["Begin", "Broadcast", "End"]
    assert cluster.nodes[1].service.pending == 0


def test_a_forwarded_live_response_whose_stream_is_deleted_ends_and_does_not_start_again() -> None:
    cluster = Cluster()
    cluster.create()
    token = cluster.ask(2, "GET", "s?offset=-1&live=sse")
    assert cluster.kinds(2, token) == ["Begin"]
    assert cluster.status(1, cluster.ask(1, "DELETE", "s")) == 204
    cluster.run_for(500)
    assert cluster.kinds(2, token) == ["Begin", "End"]
    assert cluster.nodes[2].service.pending == 0


def test_a_live_response_does_not_go_on_in_another_incarnation() -> None:
    cluster = Cluster()
    cluster.create()
    cluster.append(b"hello")
    token = cluster.ask(1, "GET", "s?offset=-1&live=sse")
    again = parse(Head(b"PUT", b"/v1/stream/s", [(b"content-type", b"text/plain")]))
    gone = parse(Head(b"DELETE", b"/v1/stream/s", []))
    # In one entry: the reader is never told of the time between.
    arrived = [(gone, b""), (again, b"HELLO"), (_append_request(), b" again")]
    cluster.turn(cluster.nodes[1], *(sx.RequestArrived(100 + number, *one) for number, one in enumerate(arrived)))
    assert cluster.status(1, 101) == 201
    assert cluster.kinds(1, token) == ["Begin", "End"]


def test_a_long_poll_that_is_woken_keeps_to_its_max_bytes() -> None:
    cluster = Cluster()
    cluster.create()
    token = cluster.ask(1, "GET", "s?offset=now&live=long-poll&max_bytes=1")
    node = cluster.nodes[1]
    messages = [sx.RequestArrived(100 + number, _append_request(), b"message %d" % number) for number in range(3)]
    cluster.turn(node, *messages)  # one entry, one wake
    assert cluster.status(1, token) == 200
    assert cluster.said(1, token)[0].data.endswith(b"\r\n\r\nmessage 0")


def _append_request() -> Any:
    return parse(Head(b"POST", b"/v1/stream/s", [(b"content-type", b"text/plain")]))
