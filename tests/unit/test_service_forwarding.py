"""Where the service sends a write that another node must answer, when the connection to that node breaks: only what was sent can be unknown."""

from random import Random
from typing import Any

from anabranch_node.core import effects as fx
from anabranch_node.core.errors import NotLeading, OutcomeUnknown
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import Heartbeat
from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.core.stream.commands import Append
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.engine import envelope
from anabranch_node.engine.group import GroupOptions
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.engine.letters import Forward
from anabranch_node.engine.meta_codec import META
from anabranch_node.service.effects import Ask, FramesDropped, Told
from anabranch_node.service.service import Service, ServiceOptions
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.wal import Wal
from anabranch_proto.ids import NodeIdentity

ME, FIRST, SECOND = (NodeIdentity("c1", number, 0xA0 + number) for number in (1, 2, 3))
GROUP = 1
REPLICAS = {ME: 11, FIRST: 12, SECOND: 13}
APPEND = Append("b/s", b"hello", 0)
OPTIONS = ServiceOptions(request_timeout_ms=5_000)
HOST_OPTIONS = HostOptions(raft=RaftOptions(election_ticks=10, heartbeat_ticks=2), group=GroupOptions(command_bytes_max=1_000_000))


class Node:
    """The service of a node that follows; its disk syncs at once."""

    def __init__(self) -> None:
        self.wal = Wal(ME, WalOptions(segment_bytes=4 << 20))
        host = Host(ME, HOST_OPTIONS, StreamMachine, Random(1), 1, self.wal)
        host.start([], {}, {})
        self.service = Service(host, OPTIONS, META)
        self.now_ms = 1_000
        self.run(*(fx.Route(REPLICAS[node], node.node_id, node.incarnation) for node in (FIRST, SECOND)))
        self.run(fx.ReplicaCreate(GROUP, REPLICAS[ME], Configuration(tuple(REPLICAS.values()))))

    def run(self, *events: Any) -> list[Any]:
        seen = self.service.turn(self.now_ms, events)
        while self.wal.ticket > self.wal.synced_ticket:
            seen = seen + self.service.turn(self.now_ms, [fx.Synced(self.wal.ticket)])
        return seen

    def hear(self, leader: NodeIdentity, term: int) -> None:
        beat = Heartbeat(REPLICAS[ME], REPLICAS[leader], term, 0, 0)
        self.run(fx.FrameReceived(leader.node_id, envelope.encode(leader, ME.node_id, ME.incarnation, self.now_ms, [(GROUP, beat)])))


def forwarded(effects: list[Any]) -> list[int]:
    """The nodes that were asked something."""
    found = []
    for effect in effects:
        if isinstance(effect, fx.SendFrame):
            to = next(node for node in REPLICAS if node.node_id == effect.node)
            letters = envelope.decode(effect.data, to, ME.node_id)[-1]
            found += [effect.node for _, letter in letters if isinstance(letter, Forward)]
    return found


def told(effects: list[Any]) -> dict[int, Any]:
    return {effect.token: effect.result for effect in effects if isinstance(effect, Told)}


def test_a_write_goes_to_the_leader() -> None:
    node = Node()
    node.hear(FIRST, 1)
    assert forwarded(node.run(Ask(7, GROUP, True, APPEND))) == [FIRST.node_id]


def test_a_write_that_was_sent_is_unknown_when_the_connection_breaks() -> None:
    node = Node()
    node.hear(FIRST, 1)
    node.run(Ask(7, GROUP, True, APPEND))
    assert isinstance(told(node.run(fx.PeerLost(FIRST.node_id)))[7], OutcomeUnknown)


def test_a_write_after_the_break_waits_for_the_next_leader() -> None:
    node = Node()
    node.hear(FIRST, 1)
    node.run(fx.PeerLost(FIRST.node_id))
    effects = node.run(Ask(7, GROUP, True, APPEND), FramesDropped(FIRST.node_id))
    assert forwarded(effects) == [], "nobody is there"
    assert told(effects) == {}, "nothing was sent, so nothing is unknown"
    node.hear(SECOND, 2)
    assert forwarded(node.run(fx.Tick())) == [SECOND.node_id]


def test_a_write_that_waited_in_vain_was_definitely_not_made() -> None:
    node = Node()
    node.hear(FIRST, 1)
    node.run(fx.PeerLost(FIRST.node_id))
    node.run(Ask(7, GROUP, True, APPEND))
    answers: dict[int, Any] = {}
    for _ in range(OPTIONS.request_timeout_ms // 500 + 1):  # in steps: a longer one would count as a clock that was set
        node.now_ms += 500
        answers |= told(node.run(fx.Tick()))
    assert isinstance(answers[7], NotLeading)


def test_a_leader_that_is_heard_again_is_asked_again() -> None:
    node = Node()
    node.hear(FIRST, 1)
    node.run(fx.PeerLost(FIRST.node_id))
    node.run(Ask(7, GROUP, True, APPEND))
    node.hear(FIRST, 1)
    assert forwarded(node.run(fx.Tick())) == [FIRST.node_id]
