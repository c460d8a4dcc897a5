"""The state of one stream: who it is, where it ends, and its recent data as columns.

append.py adds messages, read_plan.py cuts slices, snapshot.py carries all of it to bytes and back. Not here: any check (append.py, producers.py).

A chunk holds its payload end to end, where each message ends, and append times and routing keys as runs. Sealed chunks are immutable and shared
between the machine, frozen views and readers; only the open one changes. What an idle stream does not have costs it one empty field: 100,000 idle
streams are to fit in 300 MB. gc=False: these objects form no cycles, and the collector would otherwise walk all of them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Any

from msgspec import Struct

from anabranch_node.core.stream.lifetime import RareFields
from anabranch_node.core.stream.producers import Producers

CHUNK_BYTES = 64 * 1024
"""An open chunk is sealed when it reaches this. A larger message gets a chunk of its own, so that its bytes are never copied."""
CHUNK_MESSAGES = 4096
"""Also sealed at this count: it bounds what copying an open chunk costs the first append after a freeze (about 10 us)."""


class KeyRuns(Struct, frozen=True, gc=False):
    """From message `firsts[i]` of a chunk on, the routing key is `keys[i]`; "" is none. The columns grow while their chunk is open."""

    keys: list[str]
    firsts: array[int]

    def copy(self) -> KeyRuns:
        return KeyRuns(self.keys.copy(), self.firsts[:])


class Chunk(Struct, frozen=True, gc=False):
    """Sealed: never changed again. `ends` are relative to `start`; the run i has `times[i]` from message `time_firsts[i]` on."""

    start: int
    data: bytes
    ends: array[int]
    times: array[int]
    time_firsts: array[int]
    key_runs: KeyRuns | None = None
    """None: no message here has a key."""


class OpenChunk(Struct, gc=False):
    """The same columns while they grow; `parts` are the messages, joined when the chunk is sealed. Never empty."""

    start: int
    size: int
    parts: list[bytes]
    ends: array[int]
    times: array[int]
    time_firsts: array[int]

    key_runs: KeyRuns | None = None

    def add(self, body: bytes, now_ms: int, key: str) -> None:
        if now_ms != self.times[-1]:
            self.times.append(now_ms)
            self.time_firsts.append(len(self.parts))
        if key or self.key_runs is not None:
            self._add_key(key)
        self.parts.append(body)
        self.size += len(body)
        self.ends.append(self.size)

    def _add_key(self, key: str) -> None:
        """The key of the message that is about to be added."""
        runs = self.key_runs
        if runs is None:
            runs = self.key_runs = KeyRuns([""], array("I", (0,)))
        if key != runs.keys[-1]:
            runs.keys.append(key)
            runs.firsts.append(len(self.parts))

    def seal(self) -> Chunk:
        # Slicing an array copies it to its exact size; one part is not copied by join.
        return Chunk(self.start, b"".join(self.parts), self.ends[:], self.times[:], self.time_firsts[:], self._key_runs_copy())

    def copy(self) -> OpenChunk:
        return OpenChunk(self.start, self.size, self.parts.copy(), self.ends[:], self.times[:], self.time_firsts[:], self._key_runs_copy())

    def _key_runs_copy(self) -> KeyRuns | None:
        return None if self.key_runs is None else self.key_runs.copy()


class Stream(Struct, gc=False):
    name: str
    incarnation: int
    """Log index of the create << 16, and the place of the create in its entry: tells a stream from a later one of the same name."""
    content_type: str
    generation: int
    """The freeze count of the table when this object was made: an older one may be shared with a frozen view (table.py)."""
    created_ms: int = 0
    tail: int = 0
    start: int = 0
    """What we hold ourselves begins here: at 0, at the fork point, or behind what was trimmed and no fork needs."""
    earliest: int = 0
    """What lies before is not shown. Before `start` only in a fork, whose inherited part is shown."""
    producers: Producers | None = None
    sealed: list[Chunk] | None = None
    sealed_starts: array[int] | None = None
    open: OpenChunk | None = None
    rare: RareFields | None = None

    @property
    def held_bytes(self) -> int:
        published = None if self.rare is None else self.rare.published
        return self.tail - self.start + (0 if published is None else len(published.data))

    @property
    def base(self) -> int:
        """Where our own part of the offsets begins: the fork point, 0 otherwise."""
        return 0 if self.rare is None or self.rare.fork is None else self.rare.fork.offset

    @property
    def last_append_ms(self) -> int:
        if self.open is not None:
            return self.open.times[-1]
        if self.sealed:
            return self.sealed[-1].times[-1]
        return 0 if self.rare is None else self.rare.last_append_ms

    def rare_fields(self) -> RareFields:
        """To be changed; the caller owns the stream (table.py)."""
        if self.rare is None:
            self.rare = RareFields()
        return self.rare

    def add(self, body: bytes, now_ms: int, key: str) -> None:
        """Append one message."""
        size = len(body)
        chunk = self.open
        if chunk is None or size >= CHUNK_BYTES:
            if chunk is not None:
                self._seal(chunk)
            key_runs = KeyRuns([key], array("I", (0,))) if key else None
            self.open = chunk = OpenChunk(self.tail, size, [body], array("I", (size,)), array("Q", (now_ms,)), array("I", (0,)), key_runs)
        else:
            chunk.add(body, now_ms, key)
        self.tail += size
        if chunk.size >= CHUNK_BYTES or len(chunk.parts) >= CHUNK_MESSAGES:
            self._seal(chunk)

    def _seal(self, chunk: OpenChunk) -> None:
        self.add_sealed(chunk.seal())
        self.open = None

    def add_sealed(self, chunk: Chunk) -> None:
        if self.sealed is None or self.sealed_starts is None:
            self.sealed, self.sealed_starts = [], array("Q")
        self.sealed.append(chunk)
        self.sealed_starts.append(chunk.start)

    def boundary_before(self, offset: int) -> int:
        """The last boundary of our own at or before `offset`."""
        for chunk in reversed(self.chunks()):
            if offset >= chunk.start:
                number = messages_within(chunk.ends, offset - chunk.start)
                return chunk.start + (chunk.ends[number - 1] if number else 0)
        return self.start

    def drop_before(self, offset: int) -> None:
        """Forget own bytes before a message boundary. The chunk that it cuts is copied, 64 KiB at most but for one large message."""
        assert self.start <= offset <= self.tail, (self.start, offset, self.tail)
        self.start = offset
        if self.open is not None and offset >= self.open.start:
            self.sealed = self.sealed_starts = None
            if offset == self.tail:
                self.open = None
            elif offset > self.open.start:
                self.open = _open_again(_behind(self.open.seal(), offset))
            return
        if self.sealed is None or self.sealed_starts is None:
            return
        first = bisect_right(self.sealed_starts, offset) - 1
        kept = self.sealed[max(first, 0) :]
        if kept and offset >= kept[0].start + len(kept[0].data):
            kept = kept[1:]
        if kept and offset > kept[0].start:
            kept[0] = _behind(kept[0], offset)
        self.sealed = kept or None
        self.sealed_starts = array("Q", [chunk.start for chunk in kept]) if kept else None

    def chunks(self) -> list[Chunk | OpenChunk]:
        """All data in order."""
        chunks: list[Chunk | OpenChunk] = [] if self.sealed is None else [*self.sealed]
        if self.open is not None:
            chunks.append(self.open)
        return chunks

    def copy(self, generation: int) -> Stream:
        """An independent stream that shares what never changes: sealed chunks, bodies, producer states."""
        return Stream(
            self.name,
            self.incarnation,
            self.content_type,
            generation,
            self.created_ms,
            self.tail,
            self.start,
            self.earliest,
            None if self.producers is None else self.producers.copy(),
            None if self.sealed is None else self.sealed.copy(),
            None if self.sealed_starts is None else self.sealed_starts[:],
            None if self.open is None else self.open.copy(),
            None if self.rare is None else self.rare.copy(),
        )


def _behind(chunk: Chunk, offset: int) -> Chunk:
    """The messages of a chunk from a boundary inside it on."""
    first = boundary_at(chunk.ends, offset - chunk.start)
    assert first is not None, (chunk.start, offset)
    cut = offset - chunk.start
    times, time_firsts = _runs_from(chunk.times, chunk.time_firsts, first)
    key_runs = None
    if chunk.key_runs is not None:
        keys, firsts = _runs_from(chunk.key_runs.keys, chunk.key_runs.firsts, first)
        key_runs = KeyRuns(keys, firsts)
    return Chunk(offset, chunk.data[cut:], array("I", [end - cut for end in chunk.ends[first:]]), times, time_firsts, key_runs)


def _runs_from(values: Any, firsts: array[int], first: int) -> Any:
    at = bisect_right(firsts, first) - 1
    return values[at:], array("I", [max(0, each - first) for each in firsts[at:]])


def _open_again(chunk: Chunk) -> OpenChunk:
    parts = [chunk.data[begin:end] for begin, end in zip([0, *chunk.ends[:-1]], chunk.ends, strict=True)]
    return OpenChunk(chunk.start, len(chunk.data), parts, chunk.ends, chunk.times, chunk.time_firsts, chunk.key_runs)


def split_messages(body: bytes, lengths: bytes) -> list[bytes]:
    """The messages of a command's body. That `lengths` add up is web/write.py's promise; here it is held to it, before anything changes."""
    if not lengths:
        return [body] if body else []
    sizes = array("I", lengths)
    assert min(sizes) > 0 and sum(sizes) == len(body), (len(sizes), sum(sizes), len(body))
    messages: list[bytes] = []
    at = 0
    for size in sizes:
        messages.append(body[at : at + size])
        at += size
    return messages


def boundary_at(ends: array[int], position: int) -> int | None:
    """How many messages of a chunk lie before `position`, or None if it is inside one."""
    if position == 0:
        return 0
    index = bisect_left(ends, position)
    return index + 1 if index < len(ends) and ends[index] == position else None


def messages_within(ends: array[int], position: int) -> int:
    """How many messages of a chunk end at or before `position`."""
    return bisect_right(ends, position)
