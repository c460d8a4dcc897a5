"""All streams of one group, which of their objects a frozen view may be looking at, what is derived from them (bytes, names in order, expiry,
retention, pending pins), and what the group owes others.

freeze() copies the dict (pointers, at C speed) and raises the generation; whoever changes a stream calls `own` first, which replaces an object
older than the last freeze by a copy. A view thus keeps exactly what it saw, and pays for what changes, not for what exists."""

from typing import NamedTuple

from anabranch_node.core.cross.fences import Fences, FencesState, bucket_of
from anabranch_node.core.cross.outbox import Outbox
from anabranch_node.core.stream.expiry import ExpiryQueue
from anabranch_node.core.stream.lifetime import RareFields
from anabranch_node.core.stream.retention import RetentionQueue
from anabranch_node.core.stream.stream import Stream


class FrozenTable(NamedTuple):
    """What the table held at one moment; its streams are never changed (StreamTable.own)."""

    streams: dict[str, Stream]
    outbox: Outbox
    refused: frozenset[str]
    fences: FencesState


class StreamTable:
    __slots__ = (
        "_names",
        "bucket_counts",
        "expiry",
        "fences",
        "generation",
        "hot_bytes",
        "mortal",
        "outbox",
        "pending_pins",
        "refused",
        "retention",
        "streams",
    )

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        """Changed by `insert` and `remove` only."""
        self.generation = 0
        self.hot_bytes = 0
        """Payload that all streams hold."""
        self.expiry = ExpiryQueue()
        self.retention = RetentionQueue()
        self.outbox = Outbox()
        self.refused: set[str] = set()
        """Uuids of forks that must never be made: their pins were given up."""
        self.pending_pins: dict[str, str] = {}
        """Uuid of a fork-to-be -> its source here. Derived."""
        self.mortal: set[str] = set()
        """Streams that may be there and not be shown: past their due, or kept for forks. Derived; only ever counted."""
        self.fences = Fences()
        self.bucket_counts: dict[str, int] = {}
        """Streams of each bucket that has any, those included that are kept for forks, or past their due and not freed. Derived."""
        self._names: list[str] | None = None

    def insert(self, name: str, stream: Stream) -> None:
        assert name not in self.streams, name
        self.streams[name] = stream
        self.hot_bytes += stream.held_bytes
        bucket = bucket_of(name)
        self.bucket_counts[bucket] = self.bucket_counts.get(bucket, 0) + 1
        self._names = None
        if stream.rare is not None:
            self._watch(name, stream, stream.rare)

    def remove(self, name: str) -> None:
        stream = self.streams.pop(name)
        self.hot_bytes -= stream.held_bytes
        bucket = bucket_of(name)
        self.bucket_counts[bucket] -= 1
        if not self.bucket_counts[bucket]:
            del self.bucket_counts[bucket]
        self._names = None
        self.mortal.discard(name)
        if stream.rare is not None and (stream.rare.due_ms is not None or stream.rare.gone):
            self.expiry.forget(self.streams)

    def _watch(self, name: str, stream: Stream, rare: RareFields) -> None:
        """Once in its life, or at restore: whether it can expire or is trimmed is settled by its create, and touches are found out lazily."""
        if (due_ms := rare.due_ms) is not None:
            self.expiry.add(due_ms, name, stream.incarnation)
            self.mortal.add(name)
        elif rare.gone:
            self.mortal.add(name)
        self.retention.watch(name, stream)
        for uuid, pin in (rare.pins or {}).items():
            if pin.pending:
                self.pending_pins[uuid] = name

    def own(self, name: str, stream: Stream) -> Stream:
        """The object to change in place of `stream`. Callers hold it only until the next freeze."""
        if stream.generation == self.generation:
            return stream
        copy = stream.copy(self.generation)
        self.streams[name] = copy
        return copy

    def names(self) -> list[str]:
        """In order; sorted again only after a create or delete, so that a walk over all pages sorts once."""
        if self._names is None:
            self._names = sorted(self.streams)
        return self._names

    def freeze(self) -> FrozenTable:
        self.generation += 1
        return FrozenTable(self.streams.copy(), self.outbox.copy(), frozenset(self.refused), self.fences.state())
