"""Messages of one turn, gathered per peer. Before us: groups hand over what may leave. After us: one frame per peer and lane, for all groups
together.

Two lanes: bulk carries entries and snapshot pieces in order; the other carries what must never wait behind them (heartbeats, votes, reads, acks)."""

from anabranch_node.core.effects import SendFrame
from anabranch_node.core.raft.messages import Append, Message, SnapshotChunk
from anabranch_node.engine import envelope
from anabranch_node.engine.envelope import Letter
from anabranch_node.engine.letters import Forward, ForwardAnswer
from anabranch_proto.ids import NodeIdentity

FRAME_BYTES_TARGET = 1 << 20
"""A frame is closed when it passes this; one message alone may be larger."""


class Outbox:
    def __init__(self, me: NodeIdentity) -> None:
        self._me = me
        self._routes: dict[int, tuple[int, int]] = {}  # replica -> (node, incarnation)
        self._lanes: dict[tuple[int, int, bool], list[tuple[int, Letter]]] = {}

    def set_route(self, replica: int, node: int, incarnation: int) -> None:
        self._routes[replica] = (node, incarnation)

    def node_of(self, replica: int) -> tuple[int, int] | None:
        """(node, incarnation) where that replica lives, as far as we were told."""
        return self._routes.get(replica)

    def replicas_on(self, node: int) -> set[int]:
        return {replica for replica, (at, _) in self._routes.items() if at == node}

    def add(self, group: int, m: Message) -> None:
        route = self._routes.get(m.to)
        if route is None:
            return  # nobody told us where it lives: to Raft that is a lost packet
        self.add_letter(route[0], route[1], group, m, type(m) is Append or type(m) is SnapshotChunk)

    def add_letter(self, node: int, incarnation: int, group: int, m: Letter, bulk: bool) -> None:
        lane = (node, incarnation, bulk)
        letters = self._lanes.get(lane)
        if letters is None:
            letters = self._lanes[lane] = []
        letters.append((group, m))

    def frames(self, now_ms: int) -> list[SendFrame]:
        if not self._lanes:
            return []
        lanes, self._lanes = self._lanes, {}
        return [
            SendFrame(node, bulk, envelope.encode(self._me, node, incarnation, now_ms, letters))
            for (node, incarnation, bulk), all_letters in lanes.items()
            for letters in (_parts(all_letters) if bulk else [all_letters])
        ]


def _parts(letters: list[tuple[int, Letter]]) -> list[list[tuple[int, Letter]]]:
    parts: list[list[tuple[int, Letter]]] = [[]]
    size = 0
    for group, m in letters:
        payload = _payload_bytes(m)
        if parts[-1] and size + payload > FRAME_BYTES_TARGET:
            parts.append([])
            size = 0
        parts[-1].append((group, m))
        size += payload
    return parts


def _payload_bytes(m: Letter) -> int:
    if isinstance(m, Append):
        return len(m.block)
    if isinstance(m, SnapshotChunk):
        return len(m.data)
    return len(m.body) if isinstance(m, Forward | ForwardAnswer) else 0
