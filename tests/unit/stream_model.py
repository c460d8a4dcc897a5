"""A stream machine that is obviously right and nothing else: dicts of lists, every rule spelled out, no columns, no eviction order.

test_stream_machine.py and test_stream_snapshot.py compare the real one with it, and share their inputs, which are drawn here."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import strategies as st

from anabranch_node.core.stream import producers, stream
from anabranch_node.core.stream.commands import Append, Command, Create, Producer
from anabranch_node.core.stream.results import (
    Appended,
    BadEpochStart,
    Created,
    EmptyBody,
    ReadResult,
    ReadSlice,
    Result,
    SequenceGap,
    StaleEpoch,
    StreamExists,
    StreamNotFound,
    TooManyProducers,
)

PRODUCERS_MAX = 3
IDLE_MS = 100

names = st.sampled_from(["b/one", "b/two", "c/one"])
times = st.integers(0, 400)
claims = st.builds(Producer, st.sampled_from(["p", "q", "r", "s", "t"]), st.sampled_from([0, 0, 0, 1, 2]), st.sampled_from([0, 0, 0, 1, 1, 2, 3]))
bodies = st.integers(1, 9).flatmap(lambda size: st.binary(min_size=size, max_size=size)) | st.sampled_from([b"", b"x" * 40])
commands = st.one_of(
    st.builds(Create, names, st.sampled_from(["text/plain", "application/json"]), times),
    st.builds(Append, names, bodies, times),
    st.builds(Append, names, bodies, times, claims),
)
entries = st.lists(st.lists(commands, max_size=6), max_size=25).map(lambda more: [[Create("b/one", "text/plain", 0)], *more])


@contextmanager
def small_limits() -> Iterator[None]:
    """Chunks of a few messages and tables of a few producers, so that short inputs reach every limit."""
    with (
        patch.object(stream, "CHUNK_BYTES", 16),
        patch.object(stream, "CHUNK_MESSAGES", 4),
        patch.object(producers, "PRODUCERS_PER_STREAM_MAX", PRODUCERS_MAX),
        patch.object(producers, "PRODUCER_IDLE_MS", IDLE_MS),
    ):
        yield


@dataclass
class ModelProducer:
    epoch: int
    seq: int
    start: int
    end: int
    active_ms: int


@dataclass
class ModelStream:
    incarnation: int
    content_type: str
    messages: list[tuple[bytes, int]] = field(default_factory=list)
    producers: dict[str, ModelProducer] = field(default_factory=dict)

    @property
    def tail(self) -> int:
        return sum(len(body) for body, _ in self.messages)


@dataclass
class Model:
    clock: int = 0
    streams: dict[str, ModelStream] = field(default_factory=dict)

    def apply(self, index: int, command: Command) -> Result:
        self.clock = max(self.clock, command.now_ms)
        if isinstance(command, Create):
            found = self.streams.get(command.stream)
            if found is None:
                self.streams[command.stream] = ModelStream(index, command.content_type)
                return Created(0, existed=False)
            if found.content_type != command.content_type:
                return StreamExists(command.stream, found.content_type)
            return Created(found.tail, existed=True)
        if not command.body:
            return EmptyBody(command.stream)
        if command.stream not in self.streams:
            return StreamNotFound(command.stream)
        return self._append(self.streams[command.stream], command.body, command.producer)

    def _append(self, target: ModelStream, body: bytes, claim: Producer | None) -> Result:
        start, end = target.tail, target.tail + len(body)
        if claim is not None:
            known = target.producers.get(claim.id)
            if known is None:
                if claim.seq != 0:
                    return SequenceGap(0, claim.seq)
                alive = {name: p for name, p in target.producers.items() if self.clock - p.active_ms < IDLE_MS}
                if len(alive) >= PRODUCERS_MAX:
                    return TooManyProducers(PRODUCERS_MAX)
                target.producers = alive
            elif claim.epoch < known.epoch:
                return StaleEpoch(known.epoch, claim.epoch)
            elif claim.epoch > known.epoch and claim.seq != 0:
                return BadEpochStart(claim.epoch, claim.seq)
            elif claim.epoch == known.epoch and claim.seq <= known.seq:
                known.active_ms = self.clock
                return Appended(known.start, known.end, True) if claim.seq == known.seq else Appended(start, start, True)
            elif claim.epoch == known.epoch and claim.seq > known.seq + 1:
                return SequenceGap(known.seq + 1, claim.seq)
            target.producers[claim.id] = ModelProducer(claim.epoch, claim.seq, start, end, self.clock)
        target.messages.append((body, self.clock))
        return Appended(start, end)

    def read(self, name: str, offset: int, max_bytes: int) -> ReadResult | None:
        """None where the offset is no boundary: the test says then what it expects."""
        found = self.streams.get(name)
        if found is None:
            return StreamNotFound(name)
        at = 0
        taken: list[bytes] = []
        for body, _ in found.messages:
            if at >= offset and (not taken or sum(map(len, taken)) + len(body) <= max_bytes):
                if at != offset + sum(map(len, taken)):
                    return None
                taken.append(body)
            elif taken:
                break
            at += len(body)
        data = b"".join(taken)
        if not taken and offset != found.tail:
            return None
        return ReadSlice(offset, offset + len(data), data, offset + len(data) == found.tail, found.incarnation)
