"""The exactly-once table of one stream: what each producer appended last. Changed in the same apply as the data, so it cannot disagree with it.

Called by append.py: `judge` decides and changes nothing, `note_append` and `note_duplicate` record. The rules are those of the base protocol
(producer validation). States are immutable and replaced, so that copying a table for a snapshot copies pointers only.

The dict is kept in the order of last activity: the group's clock never goes back, so the longest idle producer is always the first one
and eviction never searches. The limits are part of the replicated semantics: a replica with other values would hold another state."""

from msgspec import Struct

from anabranch_node.core.stream.commands import Producer
from anabranch_node.core.stream.results import Appended, BadEpochStart, SequenceGap, StaleEpoch, TooManyProducers

PRODUCERS_PER_STREAM_MAX = 10_000
PRODUCER_IDLE_MS = 7 * 24 * 3600 * 1000
"""Exactly-once is promised until a producer was silent for this long."""


class ProducerState(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    epoch: int
    last_seq: int
    start: int
    """Where the last append starts and ends: the answer to its retry."""
    end: int
    active_ms: int


Producers = dict[str, ProducerState]
Verdict = Appended | StaleEpoch | BadEpochStart | SequenceGap | TooManyProducers | None


def judge(producers: Producers | None, claim: Producer, tail: int, now_ms: int, closed: bool = False) -> Verdict:
    """None: take the append. Otherwise the answer: a duplicate's offsets and the highest sequence taken, or why it is refused."""
    known = None if producers is None else producers.get(claim.id)
    if known is None:
        if claim.seq != 0:
            return SequenceGap(expected=0, received=claim.seq)
        if producers is not None and len(producers) >= PRODUCERS_PER_STREAM_MAX and not _first_is_idle(producers, now_ms):
            return TooManyProducers(PRODUCERS_PER_STREAM_MAX)
        return None
    if claim.epoch < known.epoch:
        return StaleEpoch(current=known.epoch, received=claim.epoch)
    if claim.epoch > known.epoch:
        return None if claim.seq == 0 else BadEpochStart(epoch=claim.epoch, received=claim.seq)
    if claim.seq == known.last_seq + 1:
        return None
    if claim.seq == known.last_seq:
        return Appended(known.start, known.end, True, closed, True, known.epoch, known.last_seq)
    if claim.seq < known.last_seq:
        return Appended(tail, tail, True, closed, True, known.epoch, known.last_seq)
    return SequenceGap(expected=known.last_seq + 1, received=claim.seq)


def note_append(producers: Producers, claim: Producer, start: int, end: int, now_ms: int) -> None:
    """Record an append that `judge` let pass. A new producer makes room first: every producer idle for 7 days is forgotten."""
    if producers.pop(claim.id, None) is None:
        while producers and _first_is_idle(producers, now_ms):
            del producers[next(iter(producers))]
    producers[claim.id] = ProducerState(claim.epoch, claim.seq, start, end, now_ms)


def note_duplicate(producers: Producers, claim: Producer, now_ms: int) -> None:
    """A retry shows that the producer is alive, so its seven days start again."""
    known = producers.pop(claim.id)
    producers[claim.id] = ProducerState(known.epoch, known.last_seq, known.start, known.end, now_ms)


def _first_is_idle(producers: Producers, now_ms: int) -> bool:
    return now_ms - next(iter(producers.values())).active_ms >= PRODUCER_IDLE_MS
