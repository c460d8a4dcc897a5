"""Is what the clients saw linearizable? Decided in O(n log n), because a stream is a log and its final content shows the order.

The final read of a stream names the order of its appends: state k is the stream after its create (k = 1) and k - 1 appends; state 0 is no stream.
An append that took effect is one step from j to j + 1. Every other answer is an observation, possible in an interval of states: a read that
was up to date in exactly one, a `SequenceGap` while its producer stood where the answer says. The history is linearizable if and only if each op
can be given a state so that no op lies before one that completed before it was invoked. Giving each the lowest state it can have, in the
order of invocation, finds such a choice whenever there is one: one sweep, no search. wgl.py, which searches, agrees (test_checkers.py).

Whoever answers an append "ok, not a duplicate" claims to have written it. If none of the tries of a producer tuple claims it and it is there,
one with an unknown outcome did: the one invoked first, which constrains the others least. An unknown append may also never happen.

Not covered: producers forgotten after 7 idle days and the limit on their number; delete and re-create."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from tests.checkers import history as h
from tests.checkers.history import Op

RULES = {
    "foreign": "the final content holds bytes that nobody appended",
    "twice": "a message is in the final content twice",
    "lost": "something acknowledged is not there at the end",
    "offset": "a message is not at the offset that was acknowledged",
    "refused": "a message is there although every try was definitely refused",
    "unwritten": "a message or stream is there although nobody can have written it: all others were told that it was there already",
    "claimed-twice": "two ops both say that they wrote the same message or created the stream",
    "create": "a create's answer contradicts the stream's content type or start",
    "sequence": "what a producer wrote is not 0, 1, 2, ... in epochs that rise",
    "read": "a read returned what is not in the final content there, or not whole messages",
    "answer": "no state of the stream gives this answer (duplicate, existed, or a refusal)",
    "order": "an append or create took effect before something that completed before it was invoked",
    "stale": "a read or an answer is older than something that completed before it was invoked",
}


class Violation(NamedTuple):
    rule: str
    """A key of RULES."""
    stream: str
    text: str

    def __str__(self) -> str:
        return f"{self.stream}: {self.rule}: {self.text}"


class BadHistory(ValueError):
    """The recording breaks the duties in history.py: nothing can be concluded from it."""


def check(ops: Iterable[Op], finals: Mapping[str, bytes | None]) -> list[Violation]:
    """Everything wrong with a history. `finals`: the content of every stream after all of it, None for a stream that does not exist."""
    streams: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        streams[op.stream].append(op)
    violations: list[Violation] = []
    for stream in sorted(streams.keys() | finals.keys()):
        if stream not in finals:
            raise BadHistory(f"there is no final read of {stream}")
        violations += _StreamChecker(stream, streams[stream], finals[stream]).run()
    return violations


class _Try(NamedTuple):
    """All tries of one logical append."""

    payload: bytes
    ops: list[Op]


class _Written(NamedTuple):
    """What one producer wrote, in log order: parallel lists, and where each (epoch, seq) stands in them."""

    steps: list[int]
    epochs: list[int]
    seqs: list[int]
    place: dict[tuple[int, int], int]


_NOWHERE = (1, 0)
"""An empty interval: no state allows this answer."""


class _StreamChecker:
    def __init__(self, stream: str, ops: list[Op], final: bytes | None) -> None:
        self.stream = stream
        self.ops = ops
        self.final = b"" if final is None else final
        self.exists = final is not None
        self.violations: list[Violation] = []
        self.tails: list[int] = [-1]  # tails[k] is the tail in state k; -1 where there is no stream
        self.state_of_tail: dict[int, int] = {}
        self.writers: dict[str, _Written] = {}
        self.steps: dict[int, int] = {}  # number of an op that took effect -> the state it led from

    def run(self) -> list[Violation]:
        appends = self._group_appends()
        placed = self._place_messages(appends)
        if self.violations:
            return self.violations  # the order of the log is in doubt, so nothing can be compared with it
        self._find_effects(appends, placed)
        self._find_creator()
        self._follow_producers(placed)
        self._sweep()
        return self.violations

    def _fail(self, rule: str, text: str) -> None:
        assert rule in RULES, rule
        self.violations.append(Violation(rule, self.stream, text))

    # --- the order of the log --------------------------------------------------------------------------------------------------------

    def _group_appends(self) -> dict[bytes, _Try]:
        appends: dict[bytes, _Try] = {}
        payload_of: dict[h.ProducerTuple, bytes] = {}
        for op in self.ops:
            if op.outcome != h.UNKNOWN and (op.completed is None or op.completed < op.invoked):
                raise BadHistory(f"{op} has an answer, but completed at {op.completed}")
            if op.kind != h.APPEND:
                continue
            if not op.payload:
                if op.outcome != h.REFUSED:
                    raise BadHistory(f"{op} has no payload")
                continue
            known = appends.setdefault(op.payload, _Try(op.payload, []))
            known.ops.append(op)
            if len(known.ops) > 1 and (op.producer is None or op.producer != known.ops[0].producer):
                raise BadHistory(f"{op} reuses the payload of {known.ops[0]}")
            if op.producer is not None and payload_of.setdefault(op.producer, op.payload) != op.payload:
                raise BadHistory(f"{op} reuses a producer tuple with another payload")
        return appends

    def _place_messages(self, appends: dict[bytes, _Try]) -> dict[bytes, int]:
        """Cut the final content into the payloads it is made of: payload -> the state its append led from."""
        placed: dict[bytes, int] = {}
        if not self.exists:
            return placed
        final = self.final
        expected = {op.start: op.payload for op in self.ops if op.kind == h.APPEND and op.outcome == h.OK and not op.flag}
        payloads = sorted(appends)
        for shorter, longer in pairwise(payloads):
            if longer.startswith(shorter):
                raise BadHistory(f"{appends[shorter].ops[0]} has a payload that is a prefix of that of {appends[longer].ops[0]}")
        length_max = max(map(len, payloads), default=0)
        self._add_state(0)
        at = 0
        while at < len(final):
            payload = expected.get(at)
            if payload is None or not final.startswith(payload, at):
                # No payload is a prefix of another, so the greatest that sorts at or before these bytes is the only candidate.
                window = final[at : at + length_max]
                index = bisect_right(payloads, window) - 1
                if index < 0 or not window.startswith(payloads[index]):
                    self._fail("foreign", f"the final content at {at} is no payload of any append: {final[at : at + 24]!r}")
                    break
                payload = payloads[index]
            if payload in placed:
                self._fail("twice", f"{appends[payload].ops[0]} is at {self.tails[placed[payload]]} and again at {at}")
            placed[payload] = len(self.tails) - 1
            at += len(payload)
            self._add_state(at)
        return placed

    def _add_state(self, tail: int) -> None:
        self.state_of_tail[tail] = len(self.tails)
        self.tails.append(tail)

    @property
    def _last(self) -> int:
        return len(self.tails) - 1

    def _find_effects(self, appends: dict[bytes, _Try], placed: dict[bytes, int]) -> None:
        """Which try wrote each message."""
        for payload, tries in appends.items():
            claims = [op for op in tries.ops if op.outcome == h.OK and not op.flag]
            step = placed.get(payload)
            if step is None:
                for op in tries.ops:
                    if op.outcome == h.OK:
                        self._fail("lost", f"{op} was acknowledged, but its payload is not in the final content")
                continue
            start, end = self.tails[step], self.tails[step + 1]
            for op in claims:
                if (op.start, op.next) != (start, end):
                    self._fail("offset", f"{op} lies at [{start}:{end}]")
            if len(claims) > 1:
                self._fail("claimed-twice", f"{claims[0]} and {claims[1]} both say that they wrote the same message")
            writers = claims or [op for op in tries.ops if op.outcome == h.UNKNOWN]
            if not writers:
                rule = "refused" if all(op.outcome == h.REFUSED for op in tries.ops) else "unwritten"
                self._fail(rule, f"the message at [{start}:{end}] is there, but no try can have written it: {', '.join(map(str, tries.ops))}")
                continue
            self.steps[min(writers, key=lambda op: op.invoked).number] = step

    def _find_creator(self) -> None:
        """Which create made the stream. Its content type is that of the create that says so, or of those that found the stream like it."""
        creates = [op for op in self.ops if op.kind == h.CREATE]
        claims = [op for op in creates if op.outcome == h.OK and not op.flag]
        if not self.exists:
            for op in creates:
                if op.outcome == h.OK:
                    self._fail("lost", f"{op} was acknowledged, but there is no such stream")
            return
        if len(claims) > 1:
            self._fail("claimed-twice", f"{claims[0]} and {claims[1]} both say that they created the stream")
        for op in claims:
            if op.next != 0:
                self._fail("create", f"{op} made an empty stream and answered another tail than 0")
        found = [op for op in creates if op.outcome == h.OK and op.flag]
        other = [op for op in creates if op.outcome == h.REFUSED and op.refusal == h.STREAM_EXISTS]
        known = claims or found
        if known:
            content_type = known[0].content_type
            self._check_content_type(content_type, found, other)
            writers = claims or [op for op in creates if op.outcome == h.UNKNOWN and op.content_type == content_type]
        else:
            different = {op.content_type for op in other}
            writers = [op for op in creates if op.outcome == h.UNKNOWN and op.content_type not in different]
        if not writers:
            self._fail("unwritten", f"the stream exists, but none of {len(creates)} creates can have made it")
            return
        self.steps[min(writers, key=lambda op: op.invoked).number] = 0

    def _check_content_type(self, content_type: str, found: list[Op], other: list[Op]) -> None:
        for op in found:
            if op.content_type != content_type:
                self._fail("create", f"{op} found the stream with its content type, but that is {content_type}")
        for op in other:
            if op.content_type == content_type:
                self._fail("create", f"{op} was refused for its content type, but that is the stream's")

    def _follow_producers(self, placed: dict[bytes, int]) -> None:
        """What each producer wrote must be a legal sequence: in an epoch 0, 1, 2, ..., and epochs only rise."""
        producer_at: dict[int, h.ProducerTuple] = {}
        for op in self.ops:
            if op.kind == h.APPEND and op.producer is not None and op.payload in placed:
                producer_at[placed[op.payload]] = op.producer
        for step in sorted(producer_at):
            name, epoch, seq = producer_at[step]
            written = self.writers.setdefault(name, _Written([], [], [], {}))
            if not written.steps:
                legal = seq == 0
            elif epoch == written.epochs[-1]:
                legal = seq == written.seqs[-1] + 1
            else:
                legal = epoch > written.epochs[-1] and seq == 0
            if not legal:
                before = f"after {written.epochs[-1]}/{written.seqs[-1]}" if written.steps else "first"
                self._fail("sequence", f"producer {name} wrote {epoch}/{seq} at {self.tails[step]} {before}")
            written.place[epoch, seq] = len(written.steps)
            written.steps.append(step)
            written.epochs.append(epoch)
            written.seqs.append(seq)

    # --- real time -------------------------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Give every op, in the order of invocation, the lowest state that it and those before it allow."""
        states: dict[int, int] = {}
        answered = sorted((op for op in self.ops if op.outcome != h.UNKNOWN and op.completed is not None), key=_completed)
        done = 0
        bound, because = 0, None
        for op in sorted(self.ops, key=_invoked):
            while done < len(answered) and _completed(answered[done]) < op.invoked:
                state = states.get(answered[done].number, 0)
                if state > bound:
                    bound, because = state, answered[done]
                done += 1
            step = self.steps.get(op.number)
            if step is not None:
                if bound > step:
                    self._fail("order", f"{op} took effect at {max(self.tails[step], 0)}, but {because}, completed before, saw a later state")
                else:
                    states[op.number] = step + 1
                continue
            interval = self._interval(op)
            if interval is None:
                continue
            low, high = interval
            if low > high:
                self._fail("read" if op.kind == h.READ else "answer", f"{op} is not an answer that any state of the stream gives{self._why(op)}")
            elif bound > high:
                self._fail("stale", f"{op} saw a state before that of {because}, which completed before it was invoked")
            else:
                states[op.number] = max(low, bound)

    def _interval(self, op: Op) -> tuple[int, int] | None:
        """The first and last state in which this answer is given. None: it says nothing."""
        if op.outcome == h.UNKNOWN:
            return None
        if op.outcome == h.REFUSED:
            return self._interval_of_refusal(op)
        if op.kind == h.READ:
            return self._interval_of_read(op)
        if not op.flag:
            return None  # it claims to have written, and _find_effects or _find_creator has said what is wrong with that
        return self._at_tail(op.next) if op.kind == h.CREATE else self._interval_of_duplicate(op)

    def _at_tail(self, tail: int) -> tuple[int, int]:
        state = self.state_of_tail.get(tail)
        return _NOWHERE if state is None else (state, state)

    def _interval_of_read(self, op: Op) -> tuple[int, int]:
        state = self.state_of_tail.get(op.next)
        same = op.start in self.state_of_tail and len(op.payload) == op.next - op.start and self.final.startswith(op.payload, op.start)
        if state is None or not same:
            return _NOWHERE
        if op.flag:
            return state, state
        return (state + 1, self._last) if op.next > op.start else _NOWHERE  # there was more, so it must have returned some of it

    def _interval_of_duplicate(self, op: Op) -> tuple[int, int]:
        if op.producer is None:
            return _NOWHERE
        name, epoch, seq = op.producer
        written = self.writers.get(name)
        index = None if written is None else written.place.get((epoch, seq))
        if written is None or index is None:
            return _NOWHERE
        step = written.steps[index]
        if op.start != op.next:  # the answer claims the offsets of the original, which are kept until the producer's next append
            return (step + 1, self._until(written, index + 1)) if (op.start, op.next) == (self.tails[step], self.tails[step + 1]) else _NOWHERE
        state = self.state_of_tail.get(op.next)
        if state is None or index + 1 == len(written.steps) or written.epochs[index + 1] != epoch:
            return _NOWHERE
        return max(state, written.steps[index + 1] + 1), min(state, self._until(written, bisect_right(written.epochs, epoch)))

    def _interval_of_refusal(self, op: Op) -> tuple[int, int] | None:
        if op.refusal not in h.INFORMATIVE[op.kind]:
            return None
        if op.refusal == h.STREAM_NOT_FOUND:
            return 0, 0
        if op.refusal == h.STREAM_EXISTS:
            return 1, self._last
        if op.refusal == h.OFFSET_BEYOND_TAIL:
            return self._at_tail(op.detail) if op.start > op.detail else _NOWHERE
        if op.refusal == h.OFFSET_INSIDE_MESSAGE:
            return _NOWHERE if op.start in self.state_of_tail else (bisect_right(self.tails, op.start), self._last)
        if op.producer is None:
            return _NOWHERE
        name, epoch, seq = op.producer
        written = self.writers.get(name, _NOTHING_WRITTEN)
        if op.refusal == h.SEQUENCE_GAP:
            if op.detail == 0:
                return (1, self._until(written, 0)) if seq != 0 else _NOWHERE
            index = written.place.get((epoch, op.detail - 1))
            return _NOWHERE if index is None or seq <= op.detail else (written.steps[index] + 1, self._until(written, index + 1))
        if op.refusal == h.STALE_EPOCH:
            first, after = bisect_left(written.epochs, op.detail), bisect_right(written.epochs, op.detail)
            return _NOWHERE if first == after or epoch >= op.detail else (written.steps[first] + 1, self._until(written, after))
        raised = bisect_left(written.epochs, epoch)
        return _NOWHERE if raised == 0 or seq == 0 else (written.steps[0] + 1, self._until(written, raised))

    def _until(self, written: _Written, index: int) -> int:
        """The last state before the producer's append number `index`."""
        return written.steps[index] if index < len(written.steps) else self._last

    def _why(self, op: Op) -> str:
        if op.kind != h.READ or op.outcome != h.OK:
            return ""
        if op.next > len(self.final):
            return f": it saw bytes up to {op.next}, the final content ends at {len(self.final)}"
        if not self.final.startswith(op.payload, op.start) or len(op.payload) != op.next - op.start:
            return f": it returned {h.short(op.payload)}, the final content there is {h.short(self.final[op.start : op.next])}"
        return ": it does not start and end at message boundaries, or is empty without being up to date"


_NOTHING_WRITTEN = _Written([], [], [], {})


def _invoked(op: Op) -> int:
    return op.invoked


def _completed(op: Op) -> int:
    assert op.completed is not None
    return op.completed
