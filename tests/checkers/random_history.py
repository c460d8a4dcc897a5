"""Small random histories of one stream: correct ones, made by concurrent clients of a real StreamMachine, and broken copies of them.

Used by test_checkers.py. Everything is drawn from one generator, so a seed is a history."""

from collections.abc import Callable
from copy import copy
from random import Random

from anabranch_node.core.stream.commands import Append, Create, Producer
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.queries import ReadAt
from anabranch_node.core.stream.results import (
    Appended,
    Created,
    OffsetBeyondTail,
    ReadResult,
    ReadSlice,
    Result,
    SequenceGap,
    StaleEpoch,
)
from tests.checkers import history as h
from tests.checkers.history import History, Op
from tests.checkers.opened import OpenedMachine

STREAM = "b/s"
TYPES = ("text/plain", "text/plain", "text/plain", "application/json")


def correct(rng: Random, op_count: int) -> tuple[list[Op], bytes | None]:
    """Clients invoke, the machine applies in some order, answers arrive in another, or never. A lost answer may belong to an op that
    still takes effect, and a refused one never does."""
    machine = OpenedMachine()
    history = History()
    producers = [("p", 0), ("q", 3)] if rng.random() < 0.8 else []
    next_seq: dict[tuple[str, int], int] = {}
    sent: list[tuple[h.ProducerTuple, bytes]] = []
    waiting: list[tuple[Op, int]] = []  # with the limit of a read
    effective: list[tuple[Op, Result | ReadResult]] = []
    clock = 0
    create_first = rng.random() < 0.8
    while len(history.ops) < op_count or waiting or effective:
        clock += 1
        choice = rng.random()
        if len(history.ops) < op_count and len(waiting) + len(effective) < 4 and choice < 0.45:
            op = _invoke(rng, history, machine, clock, producers, next_seq, sent, create=create_first and not history.ops)
            waiting.append((op, rng.choice((1, 4, 1000))))
        elif waiting and choice < 0.75:
            op, max_bytes = waiting.pop(rng.randrange(len(waiting)))
            fate = rng.random()
            if fate < 0.06:
                h.refused(op, clock, "NotLeader")
            elif fate < 0.12:
                continue  # lost on the way: no effect, no answer
            else:
                effective.append((op, _perform(machine, op, max_bytes)))
        elif effective:
            op, result = effective.pop(rng.randrange(len(effective)))
            if rng.random() < 0.85:
                _answer(op, clock, result)
    content = machine.query(ReadAt(STREAM, 0, 1 << 30), 0)
    return history.ops, content.data if isinstance(content, ReadSlice) else None


def _invoke(
    rng: Random,
    history: History,
    machine: StreamMachine,
    clock: int,
    producers: list[tuple[str, int]],
    next_seq: dict[tuple[str, int], int],
    sent: list[tuple[h.ProducerTuple, bytes]],
    create: bool,
) -> Op:
    client = rng.randrange(3)
    choice = rng.random()
    if create or choice < 0.08:
        return history.invoke_create(client, STREAM, clock, rng.choice(TYPES))
    if choice < 0.35:
        tail = machine.query(ReadAt(STREAM, 0, 1 << 30), 0)
        end = tail.next_offset if isinstance(tail, ReadSlice) else 0
        return history.invoke_read(client, STREAM, clock, rng.choice((0, 0, end, rng.randint(0, end + 2))))
    payload = b"%02d" % len(history.ops) + b"." * rng.choice((0, 0, 1, 3))
    if not producers or choice < 0.55:
        return history.invoke_append(client, STREAM, clock, payload)
    if sent and rng.random() < 0.45:
        claim, payload = rng.choice(sent[-3:])  # a retry, perhaps of one that is still under way
        return history.invoke_append(client, STREAM, clock, payload, claim)
    name, epoch = rng.choice(producers)
    if rng.random() < 0.15:
        epoch += rng.choice((-1, 1, 1))
        producers.append((name, epoch))
    seq = next_seq.get((name, epoch), 0) + (rng.random() < 0.1)
    next_seq[name, epoch] = seq + 1
    claim = (name, epoch, seq)
    sent.append((claim, payload))
    return history.invoke_append(client, STREAM, clock, payload, claim)


def _perform(machine: StreamMachine, op: Op, max_bytes: int) -> Result | ReadResult:
    if op.kind == h.READ:
        return machine.query(ReadAt(STREAM, op.start, max_bytes), 0)
    index = machine.applied_index + 1
    if op.kind == h.CREATE:
        return machine.apply_commands(index, [Create(STREAM, op.content_type, 0)])[0]
    return machine.apply_commands(index, [Append(STREAM, op.payload, 0, None if op.producer is None else Producer(*op.producer))])[0]


def _answer(op: Op, now: int, result: Result | ReadResult) -> None:
    if isinstance(result, Created):
        h.created(op, now, result.offset, result.existed)
    elif isinstance(result, Appended):
        h.appended(op, now, result.start_offset, result.next_offset, result.duplicate)
    elif isinstance(result, ReadSlice):
        h.read(op, now, result.data, result.next_offset, result.up_to_date)
    else:
        detail = 0
        if isinstance(result, StaleEpoch):
            detail = result.current
        elif isinstance(result, SequenceGap):
            detail = result.expected
        elif isinstance(result, OffsetBeyondTail):
            detail = result.tail
        h.refused(op, now, type(result).__name__, detail)


# --- breaking ------------------------------------------------------------------------------------------------------------------------


def broken(rng: Random, ops: list[Op], final: bytes | None) -> tuple[list[Op], bytes | None]:
    """A copy with one to three small lies in it. Some of them happen to be harmless, which is why both checkers must be asked."""
    ops = [copy(op) for op in ops]
    for _ in range(rng.choice((1, 1, 2, 3))):
        change = rng.choice(CHANGES)
        final = change(rng, ops, final)
    return ops, final


def _messages(ops: list[Op], final: bytes) -> list[bytes]:
    payloads = {op.payload for op in ops if op.kind == h.APPEND}
    messages: list[bytes] = []
    at = 0
    while at < len(final):
        found = next((p for p in payloads if final.startswith(p, at)), None)
        if found is None:
            return [*messages, final[at:]]
        messages.append(found)
        at += len(found)
    return messages


def _change_final(rng: Random, ops: list[Op], final: bytes | None) -> bytes | None:
    if final is None:
        return b"" if rng.random() < 0.5 else rng.choice(ops).payload
    messages = _messages(ops, final)
    choice = rng.randrange(6)
    if choice == 0 or not messages:
        return None if rng.random() < 0.3 else final + b"!!"
    i, j = rng.randrange(len(messages)), rng.randrange(len(messages))
    if choice == 1:
        del messages[i]
    elif choice == 2:
        messages[i], messages[j] = messages[j], messages[i]
    elif choice == 3:
        messages.insert(i, messages[j])
    elif choice == 4:
        messages.pop()
    else:
        messages.append(rng.choice(ops).payload)
    return b"".join(messages)


def _change_times(rng: Random, ops: list[Op], final: bytes | None) -> bytes | None:
    op = rng.choice(ops)
    latest = max(max(o.invoked, o.completed or 0) for o in ops) + 1
    op.invoked = rng.randint(0, latest if op.completed is None else op.completed)
    if op.completed is not None:
        op.completed = rng.randint(op.invoked, latest)
    return final


def _squeeze(rng: Random, ops: list[Op], final: bytes | None) -> bytes | None:
    """Real time gets stricter: an op shrinks to one moment of its interval."""
    for op in rng.sample(ops, min(len(ops), 3)):
        if op.completed is not None:
            op.invoked = op.completed = rng.randint(op.invoked, op.completed)
    return final


def _change_answer(rng: Random, ops: list[Op], final: bytes | None) -> bytes | None:
    op = rng.choice(ops)
    boundaries = [0]
    for message in _messages(ops, final or b""):
        boundaries.append(boundaries[-1] + len(message))
    choice = rng.randrange(5)
    if op.outcome == h.REFUSED:
        op.detail = max(0, op.detail + rng.choice((-1, 1)))
        if choice == 0:
            op.refusal = rng.choice(sorted(h.INFORMATIVE[op.kind]))
    elif choice == 0:
        op.flag = not op.flag
    elif choice == 1:
        op.next = rng.choice(boundaries)
        if op.kind == h.READ:
            op.payload = (final or b"")[op.start : op.next]
    elif choice == 2:
        op.start = rng.choice(boundaries)
    elif choice == 3 and op.kind == h.READ:
        op.payload = op.payload[::-1]
    else:
        index = rng.randrange(len(boundaries))
        op.start, op.next = boundaries[max(index - 1, 0)], boundaries[index]
    return final


def _change_outcome(rng: Random, ops: list[Op], final: bytes | None) -> bytes | None:
    op = rng.choice(ops)
    op.outcome = rng.choice((h.OK, h.REFUSED, h.UNKNOWN))
    if op.completed is None:
        op.completed = op.invoked + rng.randint(0, 5)
    if op.outcome == h.REFUSED:
        op.refusal = rng.choice(("NotLeader", *sorted(h.INFORMATIVE[op.kind])))
        op.detail = rng.choice((0, 0, 1, 2, op.next))
    return final


def _swap_answers(rng: Random, ops: list[Op], final: bytes | None) -> bytes | None:
    a, b = rng.choice(ops), rng.choice(ops)
    if a.kind == b.kind:
        for name in ("start", "next", "flag", "outcome", "refusal", "detail", "completed") + (("payload",) if a.kind == h.READ else ()):
            x, y = getattr(a, name), getattr(b, name)
            setattr(a, name, y)
            setattr(b, name, x)
        for op in (a, b):
            if op.completed is not None and op.completed < op.invoked:
                op.completed = op.invoked
    return final


Change = Callable[[Random, list[Op], bytes | None], bytes | None]
CHANGES: list[Change] = [_change_final, _change_times, _squeeze, _change_answer, _change_outcome, _swap_answers]


# --- size ----------------------------------------------------------------------------------------------------------------------------


def long(rng: Random, stream_count: int, op_count: int) -> tuple[list[Op], dict[str, bytes | None]]:
    """A long correct history of several streams, 16 clients at a time, one answer in a hundred lost: for speed and for finding one lie."""
    machine = OpenedMachine()
    history = History()
    names = [f"b/{number}" for number in range(stream_count)]
    tails = dict.fromkeys(names, 0)
    clock = 0
    for name in names:
        op = history.invoke_create(0, name, clock := clock + 1, TYPES[0])
        _answer(op, clock := clock + 1, machine.apply_commands(machine.applied_index + 1, [Create(name, TYPES[0], 0)])[0])
    waiting: list[Op] = []
    seqs = dict.fromkeys(((name, client) for name in names for client in range(16)), 0)
    while len(history.ops) < op_count or waiting:
        clock += 1
        if len(history.ops) < op_count and len(waiting) < 16:
            name, client = rng.choice(names), rng.randrange(16)
            if rng.random() < 0.3:
                waiting.append(history.invoke_read(client, name, clock, tails[name]))
            elif rng.random() < 0.5:
                waiting.append(history.invoke_append(client, name, clock, b"%010d;" % len(history.ops)))
            else:
                claim = (f"p{client}", 0, seqs[name, client])
                seqs[name, client] += 1
                waiting.append(history.invoke_append(client, name, clock, b"%010d;" % len(history.ops), claim))
            if rng.random() < 0.7:
                continue
        op = waiting.pop(0)
        if op.kind == h.READ:
            result: Result | ReadResult = machine.query(ReadAt(op.stream, op.start, 4096), 0)
        else:
            command = Append(op.stream, op.payload, 0, None if op.producer is None else Producer(*op.producer))
            result = machine.apply_commands(machine.applied_index + 1, [command])[0]
            if isinstance(result, Appended):
                tails[op.stream] = result.next_offset
        if rng.random() < 0.99:
            _answer(op, clock := clock + 1, result)
    finals: dict[str, bytes | None] = {}
    for name in names:
        content = machine.query(ReadAt(name, 0, 1 << 40), 0)
        assert isinstance(content, ReadSlice)
        finals[name] = content.data
    return history.ops, finals
