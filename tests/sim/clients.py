"""Applications in the simulator: they append with and without producer tuples, read, time out, retry elsewhere, and write down what they saw.

A producer repeats its append, tuple and payload unchanged, until it is acknowledged; now and then it sends it to two nodes at once, or comes back
with a new epoch. A plain writer never repeats. Packets are slow, and those of producers arrive twice, also long after their successors; now and
then somebody does what it should not: the zombie of an older epoch writes on, a sequence has a hole, a stream is missing or is created again with
another content type. Each such stray is an op of its own and changes nothing for the client. What a client heard is all that the checker gets: the
history, and the final content of each stream."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from anabranch_node.core import effects as fx
from anabranch_node.core.errors import NotLeading
from anabranch_node.core.stream.commands import Append, Create, Producer
from anabranch_node.core.stream.queries import ReadAt
from anabranch_node.core.stream.results import Appended, Created, OffsetBeyondTail, ReadSlice, SequenceGap, StaleEpoch, StreamExists
from tests.checkers import history
from tests.checkers.history import Op
from tests.sim.chance import between
from tests.sim.swarm import SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

_CONTENT_TYPE = "application/octet-stream"
_OTHER_TYPE = "text/plain"
_STRAY_US = (1, 2 * SECOND)  # how late a copy may come


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
        self.strays: dict[int, Op] = {}  # nobody waits for these, but what they did counts
        self.past: list[tuple[int, dict[str, int]]] = []  # epochs that we left behind, with the next sequence on each stream
        self.holes = 0
        self.acked = 0
        self.timeouts = 0  # in a row
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
        if world.swarm.mischief and not world.draining and rng.random() < world.swarm.mischief:
            self._misbehave(stream)
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
                    self.past.append((self.epoch, self.seq))
                    self.epoch += 1
                    self.seq = {}
                producer = Producer(f"p{self.number}", self.epoch, self.seq.get(stream, 0))
                self.pending = (stream, body, producer)
                self._append(stream, body, producer)
        self._later()

    def _later(self) -> None:
        # Once the chaos is over a client that timed out waits longer each time, as any client should: with a window of one small append and impatient
        # retries a leader could otherwise be given work faster than it may send it, for ever (seed 1050).
        patience = 1 << min(self.timeouts, 6) if self.world.chaos_over else 1
        self.world.after(patience * self.rng.randint(1, 2 * self.world.swarm.think_us), self.act)

    def _create(self, stream: str) -> None:
        op = self.world.history.invoke_create(self.number, stream, self.world.tick(), _CONTENT_TYPE)
        self._send(op, Create(stream, _CONTENT_TYPE, 0))

    def _append(self, stream: str, body: bytes, producer: Producer | None) -> None:
        tuple_ = (producer.id, producer.epoch, producer.seq) if producer is not None else None
        for _ in range(2 if producer is not None and self.rng.random() < 0.1 else 1):
            op = self.world.history.invoke_append(self.number, stream, self.world.tick(), body, tuple_)
            self._send(op, Append(stream, body, 0, producer))
        if producer is not None and self.rng.random() < self.world.swarm.duplication and not self.world.draining:
            self.world.net.duplicated += 1
            self._stray(stream, body, producer, between(self.rng, _STRAY_US))

    def _misbehave(self, stream: str) -> None:
        """No harm must come of it, and each answer must be the one that the stream's state gives."""
        world, rng = self.world, self.rng
        what = rng.random()
        if what < 0.1:
            known = rng.choice([0, *self.tails.get(stream, [])[-5:]])
            asked, offset = rng.choice(((stream, known + 5), (stream, max(0, known - 3)), (world.ghosts[world.group_of[stream]], 0)))
            self._send(world.history.invoke_read(self.number, asked, world.tick(), offset), None, stray_us=1)
        elif what < 0.2:
            op = world.history.invoke_create(self.number, stream, world.tick(), _OTHER_TYPE)
            self._send(op, Create(stream, _OTHER_TYPE, 0), stray_us=1)
        elif what < 0.4:
            # A stream that nobody ever creates, or one that perhaps nobody has created yet.
            missing = world.ghosts[world.group_of[stream]] if rng.random() < 0.7 else stream
            body = world.payload(20)
            self._send(world.history.invoke_append(self.number, missing, world.tick(), body), Append(missing, body, 0, None), stray_us=1)
        elif self.is_producer and what < 0.8 and self.past:
            epoch, seqs = rng.choice(self.past)
            seqs[stream] = seq = seqs.get(stream, 0) + 1
            self._stray(stream, world.payload(20), Producer(f"p{self.number}", epoch, seq - 1), 1)
        elif self.is_producer:
            self.holes += 1  # so that no tuple is used twice
            epoch = self.epoch + rng.choice((0, 1_000))
            self._stray(stream, world.payload(20), Producer(f"p{self.number}", epoch, 10_000 + self.holes), 1)

    def _stray(self, stream: str, body: bytes, producer: Producer, late_us: int) -> None:
        op = self.world.history.invoke_append(self.number, stream, self.world.tick(), body, (producer.id, producer.epoch, producer.seq))
        self._send(op, Append(stream, body, 0, producer), stray_us=late_us)

    def _read(self, stream: str) -> None:
        offset = self.rng.choice([0, *self.tails.get(stream, [])[-20:]])
        op = self.world.history.invoke_read(self.number, stream, self.world.tick(), offset)
        self._send(op, None)

    # --- the way to a node and back ----------------------------------------------------------------------------------------------

    def _send(self, op: Op, command: Any, stray_us: int = 0) -> None:
        """`stray_us`: nobody waits for the answer, and it leaves that much later."""
        world, rng = self.world, self.rng
        group = world.group_of[op.stream]
        hosts = world.placement[group]
        node = self.leader.get(group)
        # Half of the reads go where the last answer came from: a leader that was deposed meanwhile must notice.
        if node not in hosts or rng.random() < (0.5 if command is None else 0.1):
            node = rng.choice(hosts)
        token = world.token()
        (self.strays if stray_us else self.waiting)[token] = op
        event: fx.Event = (
            fx.Propose(token, group, command)
            if command is not None
            else fx.Read(token, group, ReadAt(op.stream, op.start, rng.choice((1, 200, 1 << 20))))
        )
        delay = between(rng, world.swarm.net_delay_us)
        if world.swarm.slow_packet and rng.random() < world.swarm.slow_packet:
            delay *= 50
        world.after(delay + stray_us, self._arrive, node, event)
        if not stray_us:
            world.after(world.swarm.timeout_us, self._time_out, token)

    def _arrive(self, node_number: int, event: fx.Event) -> None:
        node = self.world.nodes[node_number]
        if node.up:
            self.world.ask(node, event, self)
        else:
            self.heard(event.token, NotLeading(0), node_number)  # connection refused: it never got there

    def _time_out(self, token: int) -> None:
        op = self.waiting.pop(token, None)
        if op is not None:
            self.timeouts += 1
            history.unknown(op, self.world.tick())
            self.leader.pop(self.world.group_of[op.stream], None)

    def heard(self, token: int, result: Any, node: int) -> None:
        op = self.waiting.pop(token, None)
        if op is not None:
            self.timeouts = 0
            _record(op, self.world.tick(), result)
            self._learn(op, result, node)
        else:
            op = self.strays.pop(token, None)
            if op is not None:
                _record(op, self.world.tick(), result)

    def _learn(self, op: Op, result: Any, node: int) -> None:
        if isinstance(result, Appended):
            self.leader[self.world.group_of[op.stream]] = node
            self._acknowledged(op)
        elif isinstance(result, Created | StreamExists):
            self.created.add(op.stream)
        elif isinstance(result, ReadSlice):
            self.tails.setdefault(op.stream, []).append(result.next_offset)
            self.acked += 1
        elif isinstance(result, NotLeading):
            self._follow(op, result.leader)

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


def _record(op: Op, now: int, result: Any) -> None:
    if isinstance(result, Appended):
        history.appended(op, now, result.start_offset, result.next_offset, result.duplicate)
    elif isinstance(result, Created):
        history.created(op, now, result.offset, result.existed)
    elif isinstance(result, ReadSlice):
        history.read(op, now, result.data, result.next_offset, result.up_to_date)
    elif result.definite:
        history.refused(op, now, type(result).__name__, _detail(result))
    else:
        history.unknown(op, now)


def _detail(result: Any) -> int:
    if isinstance(result, StaleEpoch):
        return result.current
    if isinstance(result, SequenceGap):
        return result.expected
    if isinstance(result, OffsetBeyondTail):
        return result.tail
    return 0
