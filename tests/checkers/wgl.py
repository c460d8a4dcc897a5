"""A brute-force linearizability checker for small histories of one stream: try every order (Wing & Gong, with Lowe's memory of what was tried).

It knows nothing of final orders or intervals, only a sequential stream; so it can be wrong in other ways than stream_checker.py, and the two are
compared on thousands of random histories. Exponential in concurrent and unknown ops: for histories of about a dozen ops."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.checkers import history as h
from tests.checkers.history import Op


class Model(NamedTuple):
    """A sequential stream, written to be obviously right."""

    content_type: str | None = None  # None: there is no stream
    messages: tuple[bytes, ...] = ()
    producers: tuple[tuple[str, int, int, int, int], ...] = ()  # (id, epoch, last seq, start, end)

    @property
    def tail(self) -> int:
        return sum(map(len, self.messages))

    @property
    def boundaries(self) -> list[int]:
        return [sum(map(len, self.messages[:count])) for count in range(len(self.messages) + 1)]


Answer = tuple[object, ...]
"""What the model says, in the words of an Op: (REFUSED, refusal, detail) or (OK, ...)."""


def apply(model: Model, op: Op) -> tuple[Model, Answer]:
    """The next state and the answer to a create or an append."""
    if op.kind == h.CREATE:
        if model.content_type is None:
            return model._replace(content_type=op.content_type), (h.OK, 0, False)
        if model.content_type != op.content_type:
            return model, (h.REFUSED, h.STREAM_EXISTS, 0)
        return model, (h.OK, model.tail, True)
    if model.content_type is None:
        return model, (h.REFUSED, h.STREAM_NOT_FOUND, 0)
    start, end = model.tail, model.tail + len(op.payload)
    longer = model._replace(messages=(*model.messages, op.payload))
    if op.producer is None:
        return longer, (h.OK, start, end, False)
    name, epoch, seq = op.producer
    known = next((row for row in model.producers if row[0] == name), None)
    if known is None:
        if seq != 0:
            return model, (h.REFUSED, h.SEQUENCE_GAP, 0)
    else:
        _, current, last, last_start, last_end = known
        if epoch < current:
            return model, (h.REFUSED, h.STALE_EPOCH, current)
        if epoch > current and seq != 0:
            return model, (h.REFUSED, h.BAD_EPOCH_START, 0)
        if epoch == current and seq > last + 1:
            return model, (h.REFUSED, h.SEQUENCE_GAP, last + 1)
        if epoch == current and seq == last:
            return model, (h.OK, last_start, last_end, True)
        if epoch == current and seq < last:
            return model, (h.OK, start, start, True)
    others = [row for row in model.producers if row[0] != name]
    return longer._replace(producers=tuple(sorted([*others, (name, epoch, seq, start, end)]))), (h.OK, start, end, False)


def is_read_possible(model: Model, op: Op) -> bool:
    """Reads may return less than everything, so the model judges an answer instead of giving one."""
    if model.content_type is None:
        return op.outcome == h.REFUSED and op.refusal == h.STREAM_NOT_FOUND
    boundaries = model.boundaries
    if op.outcome == h.REFUSED:
        if op.refusal == h.OFFSET_BEYOND_TAIL:
            return op.start > model.tail and op.detail == model.tail
        return op.refusal == h.OFFSET_INSIDE_MESSAGE and op.start < model.tail and op.start not in boundaries
    if op.start not in boundaries or op.next not in boundaries or op.next < op.start:
        return False
    data = b"".join(model.messages)[op.start : op.next]
    return op.payload == data and op.flag == (op.next == model.tail) and (op.next > op.start or op.flag)


def answer_of(op: Op) -> Answer:
    if op.outcome == h.REFUSED:
        return (h.REFUSED, op.refusal, op.detail if op.refusal in (h.STALE_EPOCH, h.SEQUENCE_GAP) else 0)
    return (h.OK, op.next, op.flag) if op.kind == h.CREATE else (h.OK, op.start, op.next, op.flag)


def is_linearizable(ops: Sequence[Op], final: bytes | None) -> bool:
    """Is there an order of all answered ops and some unknown ones that respects real time, gives every answer and ends in `final`?"""
    relevant = [op for op in ops if _matters(op)]
    ends = [op.completed if op.outcome != h.UNKNOWN else None for op in relevant]
    answered = sum(1 << i for i, op in enumerate(relevant) if op.outcome != h.UNKNOWN)
    seen: set[tuple[int, Model]] = set()
    stack: list[tuple[int, Model]] = [(0, Model())]
    while stack:
        done, model = stack.pop()
        if (done, model) in seen:
            continue
        seen.add((done, model))
        if done & answered == answered and (None if model.content_type is None else b"".join(model.messages)) == final:
            return True
        horizon = min((end for i, end in enumerate(ends) if end is not None and not done >> i & 1), default=None)
        for i, op in enumerate(relevant):
            if done >> i & 1 or (horizon is not None and op.invoked > horizon):
                continue  # done, or something not done yet completed before it was invoked
            if op.kind == h.READ:
                if is_read_possible(model, op):
                    stack.append((done | 1 << i, model))
                continue
            after, answer = apply(model, op)
            if op.outcome == h.UNKNOWN:
                if after is not model:
                    stack.append((done | 1 << i, after))
            elif answer == answer_of(op):
                stack.append((done | 1 << i, after))
    return False


def _matters(op: Op) -> bool:
    if op.outcome == h.REFUSED:
        return op.refusal in h.INFORMATIVE[op.kind]
    return op.kind != h.READ or op.outcome == h.OK
