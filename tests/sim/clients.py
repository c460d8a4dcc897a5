"""Applications in the simulator: they append with and without producer tuples, read, time out, retry elsewhere, and write down what they saw.

A producer repeats its append, tuple and payload unchanged, until it is acknowledged; now and then it sends it to two nodes at once, or comes back
with a new epoch. A plain writer never repeats. What a client heard is all that the checker gets: the history, and the final content of each
stream."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from anabranch_node.core import effects as fx
from anabranch_node.core.errors import NotLeading
from anabranch_node.core.stream.commands import Append, Create, Producer
from anabranch_node.core.stream.results import Appended, Created, OffsetBeyondTail, ReadSlice, SequenceGap, StaleEpoch
from tests.checkers import history
from tests.checkers.history import Op
from tests.sim.chance import between

if TYPE_CHECKING:
    from tests.sim.world import World

_CONTENT_TYPE = "application/octet-stream"


class Client:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.rng = Random(world.swarm.seed * 1_000 + 500 + number)
        self.is_producer = self.rng.random() < world.swarm.producer_share
        self.epoch = 0
        self.seq: dict[str, int] = {}
        self.pending: tuple[str, bytes, Producer] | None = None  # to be repeated until acknowledged
        self.leader: dict[int, int] = {}  # group -> node that we believe leads it
        self.tails: dict[str, list[int]] = {}  # offsets of message boundaries that we know
        self.waiting: dict[int, Op] = {}
        self.acked = 0
        self.created: set[str] = set()

    @property
    def idle(self) -> bool:
        return self.pending is None and not self.waiting

    # --- what to do next ---------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Start one operation; the next follows after its end, or after a while."""
        world, rng = self.world, self.rng
        if world.draining and self.pending is None:
            return
        if self.waiting:
            self._later()
            return
        stream = rng.choice(world.streams)
        if self.pending is not None:
            self._append(*self.pending)
        elif stream not in self.created:
            self._create(stream)
        elif rng.random() < world.swarm.read_share:
            self._read(stream)
        else:
            body = world.payload(rng.randint(10, world.swarm.body_bytes))
            if not self.is_producer:
                self._append(stream, body, None)
            else:
                if rng.random() < 0.03:
                    self.epoch += 1
                    self.seq = {}
                producer = Producer(f"p{self.number}", self.epoch, self.seq.get(stream, 0))
                self.pending = (stream, body, producer)
                self._append(stream, body, producer)
        self._later()

    def _later(self) -> None:
        self.world.after(self.rng.randint(1, 2 * self.world.swarm.think_us), self.act)

    def _create(self, stream: str) -> None:
        op = self.world.history.invoke_create(self.number, stream, self.world.tick(), _CONTENT_TYPE)
        self._send(op, Create(stream, _CONTENT_TYPE, 0))

    def _append(self, stream: str, body: bytes, producer: Producer | None) -> None:
        tuple_ = (producer.id, producer.epoch, producer.seq) if producer is not None else None
        for _ in range(2 if producer is not None and self.rng.random() < 0.1 else 1):
            op = self.world.history.invoke_append(self.number, stream, self.world.tick(), body, tuple_)
            self._send(op, Append(stream, body, 0, producer))

    def _read(self, stream: str) -> None:
        offset = self.rng.choice([0, *self.tails.get(stream, [])[-20:]])
        op = self.world.history.invoke_read(self.number, stream, self.world.tick(), offset)
        self._send(op, None)

    # --- the way to a node and back ----------------------------------------------------------------------------------------------

    def _send(self, op: Op, command: Any) -> None:
        world, rng = self.world, self.rng
        group = world.group_of[op.stream]
        hosts = world.placement[group]
        node = self.leader.get(group)
        if node not in hosts or command is None or rng.random() < 0.1:
            node = rng.choice(hosts)
        token = world.token()
        self.waiting[token] = op
        event: fx.Event = (
            fx.Propose(token, group, command) if command is not None else fx.Read(token, group, op.stream, op.start, rng.choice((1, 200, 1 << 20)))
        )
        world.after(between(rng, world.swarm.net_delay_us), self._arrive, node, event)
        world.after(world.swarm.timeout_us, self._time_out, token)

    def _arrive(self, node_number: int, event: fx.Event) -> None:
        node = self.world.nodes[node_number]
        if node.up:
            self.world.ask(node, event, self)
        else:
            self.heard(event.token, NotLeading(0))  # connection refused: it never got there

    def _time_out(self, token: int) -> None:
        op = self.waiting.pop(token, None)
        if op is not None:
            history.unknown(op, self.world.tick())
            self.leader.pop(self.world.group_of[op.stream], None)

    def heard(self, token: int, result: Any) -> None:
        op = self.waiting.pop(token, None)
        if op is None:
            return
        now = self.world.tick()
        if isinstance(result, Appended):
            history.appended(op, now, result.start_offset, result.next_offset, result.duplicate)
            self._acknowledged(op)
        elif isinstance(result, Created):
            history.created(op, now, result.offset, result.existed)
            self.created.add(op.stream)
        elif isinstance(result, ReadSlice):
            history.read(op, now, result.data, result.next_offset, result.up_to_date)
            self.tails.setdefault(op.stream, []).append(result.next_offset)
            self.acked += 1
        elif result.definite:
            if isinstance(result, NotLeading):
                self._follow(op, result.leader)
            history.refused(op, now, type(result).__name__, _detail(result))
        else:
            history.unknown(op, now)

    def _acknowledged(self, op: Op) -> None:
        self.acked += 1
        self.tails.setdefault(op.stream, []).append(op.next)
        if self.pending is not None and op.payload == self.pending[1]:
            stream, _, producer = self.pending
            self.pending = None
            self.seq[stream] = producer.seq + 1

    def _follow(self, op: Op, replica: int) -> None:
        group = self.world.group_of[op.stream]
        node = self.world.node_of.get(replica)
        if node is not None:
            self.leader[group] = node
        else:
            self.leader.pop(group, None)


def _detail(result: Any) -> int:
    if isinstance(result, StaleEpoch):
        return result.current
    if isinstance(result, SequenceGap):
        return result.expected
    if isinstance(result, OffsetBeyondTail):
        return result.tail
    return 0
