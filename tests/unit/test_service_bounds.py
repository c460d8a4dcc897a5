"""The bounds of the service, without sockets: live readers, fan-out, hot data, a nearly full disk; what is refused, and what is left afterwards."""

import re
from random import Random
from typing import Any

import pytest

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.machine import MetaMachine
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.cluster.view import ClusterView, GroupPlacement, NodeInfo, ReplicaPlace
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.engine.group import GroupOptions
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.engine.meta_codec import META
from anabranch_node.service.effects import Begin, Broadcast, End, EndLive, RequestArrived, RequestGone, Respond
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import Service, ServiceOptions
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.wal import Wal
from anabranch_node.web.request import Head, parse
from anabranch_proto.ids import NodeIdentity
from tests.checkers.opened import OpenedMachine

ME = NodeIdentity("c1", 1, 0xA)
RAFT = RaftOptions(election_ticks=10, heartbeat_ticks=2)
HOST = HostOptions(raft=RAFT, group=GroupOptions(command_bytes_max=1_000_000))
LIVE = "/v1/stream/s?offset=now&live=sse"
POLL = "/v1/stream/s?offset=now&live=long-poll"


class Rig:
    """A service over one group with one voter, a disk that syncs at once, and what each client was sent."""

    def __init__(self, live: LiveOptions | None = None, host: HostOptions = HOST) -> None:
        self.now_ms = 1_000
        self.wal = Wal(ME, WalOptions(segment_bytes=4 << 20))
        self.host = Host(ME, host, OpenedMachine, Random(1), 1, self.wal, MetaMachine)
        self.host.start([], {}, {})
        self.service = Service(self.host, ServiceOptions(live=live or LiveOptions()), META)
        node = NodeInfo(1, "n", ME.incarnation, 1, "c", "a", "p", "", "active")
        self.service.routing = Routing(ClusterView(1, "c1", 1, 1, [node], [GroupPlacement(1, [ReplicaPlace(7, 1)])]))
        self.sent: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.token = 0
        self.run(fx.ReplicaCreate(1, 7, Configuration((7,))))
        for _ in range(30):
            self.tick()
        assert self.ask("PUT", "/v1/stream/s") == 201

    def turn(self, *events: Any) -> bool:
        """True: it wants to turn again."""
        again = False
        for effect in self.service.turn(self.now_ms, events):
            if isinstance(effect, Respond | Begin):
                self.sent[effect.token] = effect.data
            elif isinstance(effect, Broadcast | End):
                for token in effect.tokens:
                    self.sent[token] += effect.data
                if isinstance(effect, End):
                    self.ended += effect.tokens
            again |= isinstance(effect, fx.TurnAgain)
        return again

    def run(self, *events: Any) -> None:
        again = self.turn(*events)
        while again or self.wal.ticket > self.wal.synced_ticket:
            again = self.turn(fx.Synced(self.wal.ticket))

    def tick(self, ms: int = 50) -> None:
        self.now_ms += ms
        self.run(fx.Tick())

    def arrive(self, method: str, target: str, body: bytes = b"") -> RequestArrived:
        self.token += 1
        head = Head(method.encode(), target.encode(), [(b"host", b"h"), (b"content-type", b"text/plain")])
        return RequestArrived(self.token, parse(head), body)

    def ask(self, method: str, target: str, body: bytes = b"") -> int:
        """The status of the answer; 0: there is none yet."""
        self.run(self.arrive(method, target, body))
        return int(self.sent.get(self.token, b"         0")[9:12])


def assert_refused(answer: bytes, code: bytes) -> None:
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: " in answer
    assert b'"code":"%b"' % code in answer


@pytest.mark.parametrize("target", [LIVE, POLL])
def test_live_readers_are_counted_once_and_bounded(target: str) -> None:
    rig = Rig(LiveOptions(waiters_max=3))
    for _ in range(3):
        assert rig.ask("GET", target) == (200 if target is LIVE else 0)
    assert rig.service.live_count == 3
    rig.ask("GET", target)
    assert_refused(rig.sent[rig.token], b"overloaded")
    assert rig.ask("GET", "/v1/stream/s?offset=-1") == 200  # whoever does not wait is served
    rig.run(RequestGone(rig.token - 4))
    assert rig.ask("GET", target) == (200 if target is LIVE else 0)


def test_live_readers_that_come_in_one_turn_are_bounded_as_well() -> None:
    rig = Rig(LiveOptions(waiters_max=3))
    rig.run(*[rig.arrive("GET", LIVE) for _ in range(8)])
    statuses = [rig.sent[token][9:12] for token in range(2, 10)]
    assert (statuses.count(b"200"), statuses.count(b"503")) == (3, 5)


def test_nothing_is_left_of_a_live_reader_whose_response_ended() -> None:
    rig = Rig(LiveOptions(sse_rotate_ms=500, long_poll_timeout_ms=400))
    for _ in range(5):
        rig.ask("GET", LIVE)
        rig.ask("GET", POLL)
    assert rig.service.pending == 10
    rig.tick(1_000)
    rig.tick()
    assert len(rig.ended) == 5
    assert (rig.service.pending, rig.service.live_count) == (0, 0)
    rig.ask("GET", LIVE)
    rig.run(EndLive())  # the node stops
    assert (rig.service.pending, rig.service.live_count) == (0, 0)
    for _ in range(3):
        rig.ask("GET", LIVE)
    assert rig.ask("DELETE", "/v1/stream/s") == 204
    assert (rig.service.pending, rig.service.live_count) == (0, 0)
    rig.ask("PUT", "/v1/stream/s")
    rig.ask("GET", LIVE)
    rig.run(RequestGone(rig.token))
    assert (rig.service.pending, rig.service.live_count) == (0, 0)


def test_fan_out_does_not_pile_up_behind_a_crowd() -> None:
    """Appends come faster than the crowd can be served: what waits is one round of events and not all of them, and nobody misses anything."""
    readers = 100
    rig = Rig(LiveOptions(fanout_readers_per_turn_max=10))
    rig.run(*[rig.arrive("GET", LIVE) for _ in range(readers)])
    crowd = range(2, 2 + readers)
    most = 0
    for number in range(60):
        rig.turn(rig.arrive("POST", "/v1/stream/s", b"<%03d>" % number))
        rig.turn(fx.Synced(rig.wal.ticket))
        most = max(most, rig.service.live.waiting_bytes)
    rig.run(fx.Tick())
    for token in crowd:
        assert [int(number) for number in re.findall(rb"<(\d{3})>", rig.sent[token])] == list(range(60))
    assert most < 4_000, most
    assert rig.service.live.waiting_bytes == 0


def test_hot_full_is_an_answer_and_ends_with_deletes() -> None:
    rig = Rig(host=HostOptions(raft=RAFT, group=HOST.group, hot_bytes_max=100_000))
    assert rig.ask("POST", "/v1/stream/s", bytes(100_001)) == 204
    rig.tick()
    rig.ask("POST", "/v1/stream/s", b"one more")
    assert_refused(rig.sent[rig.token], b"hot_full")
    assert rig.ask("GET", "/v1/stream/s?offset=-1") == 200
    assert rig.ask("DELETE", "/v1/stream/s") == 204
    rig.tick()
    assert rig.ask("PUT", "/v1/stream/s", b"again") == 201


def test_what_is_not_committed_yet_counts_as_hot() -> None:
    """It will be: otherwise a slow disk would let in as many bytes as all groups may have uncommitted, which is far more."""
    rig = Rig(host=HostOptions(raft=RAFT, group=HOST.group, hot_bytes_max=100_000))
    rig.turn(rig.arrive("POST", "/v1/stream/s", bytes(100_001)))  # and no sync
    rig.turn(fx.Tick())
    rig.turn(rig.arrive("POST", "/v1/stream/s", b"one more"))
    assert_refused(rig.sent[rig.token], b"hot_full")


def test_a_nearly_full_disk_refuses_appends_but_not_deletes_and_reads() -> None:
    rig = Rig()
    rig.run(fx.DiskSpace(spare_segments=2, free_bytes=0))
    for method, target in (("POST", "/v1/stream/s"), ("PUT", "/v1/stream/t")):
        rig.ask(method, target, b"x")
        assert_refused(rig.sent[rig.token], b"disk_full")
    assert rig.ask("GET", "/v1/stream/s?offset=-1") == 200
    assert rig.ask("DELETE", "/v1/stream/s") == 204
    rig.run(fx.DiskSpace(spare_segments=0, free_bytes=0))  # nothing can be written at all
    rig.ask("DELETE", "/v1/stream/s")
    assert_refused(rig.sent[rig.token], b"disk_full")
    rig.run(fx.DiskSpace(spare_segments=2, free_bytes=1 << 40))
    assert rig.ask("PUT", "/v1/stream/s", b"x") == 201


def test_commands_of_one_turn_are_bounded() -> None:
    rig = Rig(host=HostOptions(raft=RAFT, group=GroupOptions(command_bytes_max=1_000_000, queue_bytes_max=50_000)))
    rig.run(*[rig.arrive("POST", "/v1/stream/s", bytes(20_000)) for _ in range(4)])
    assert [rig.sent[token][9:12] for token in range(2, 6)] == [b"204", b"204", b"503", b"503"]
    assert_refused(rig.sent[5], b"overloaded")
    assert rig.ask("POST", "/v1/stream/s", bytes(20_000)) == 204


def test_uncommitted_bytes_are_bounded() -> None:
    rig = Rig(host=HostOptions(raft=RaftOptions(election_ticks=10, heartbeat_ticks=2, uncommitted_bytes_max=50_000), group=HOST.group))
    for _ in range(4):
        rig.turn(rig.arrive("POST", "/v1/stream/s", bytes(20_000)))  # each turn an entry, and no sync
    assert_refused(rig.sent[rig.token], b"overloaded")
    rig.run()
    assert [rig.sent[token][9:12] for token in range(2, 6)] == [b"204", b"204", b"503", b"503"]
    assert rig.ask("POST", "/v1/stream/s", bytes(20_000)) == 204


def test_reads_that_wait_for_their_group_are_bounded() -> None:
    rig = Rig(host=HostOptions(raft=RAFT, group=GroupOptions(command_bytes_max=1_000_000, reads_waiting_max=2)))
    rig.run(*[rig.arrive("GET", "/v1/stream/s?offset=-1") for _ in range(3)])
    assert [rig.sent[token][9:12] for token in range(2, 5)] == [b"200", b"200", b"503"]
    assert_refused(rig.sent[4], b"overloaded")
