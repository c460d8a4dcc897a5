"""The whole vocabulary against the model that is obviously right: any commands give the same results, state and answers, also from a Raft snapshot.

What is drawn are intentions ("pin one at its second boundary"), and turned into commands as the model's state has it by then: chance alone would
hardly ever name an incarnation, a boundary or a fork point that there is. test_stream_machine.py holds appends and producers in the same way, and
the rules one by one. Small alphabets, so that names, uuids and offsets collide."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.commands import (
    AckOutbox,
    Append,
    BucketFence,
    BucketOpen,
    Command,
    Create,
    CreateFork,
    Delete,
    Expire,
    Pin,
    PublishSnapshot,
    Range,
    ResolveFork,
    SettlePin,
    Touch,
    Trim,
    Unpin,
)
from anabranch_node.core.stream.machine import _APPLY, StreamMachine
from anabranch_node.core.stream.queries import (
    NOW,
    START,
    BucketCount,
    ForkLook,
    Head,
    ListStreams,
    PointAt,
    Query,
    ReadAt,
    ReadInherited,
    ReadMessages,
    ReadSnapshot,
)
from anabranch_node.core.stream.results import Pinned
from tests.checkers.stream_model import Model, ModelStream, clipped
from tests.unit.stream_model import IDLE_MS, PRODUCERS_MAX, lengths_of, small_limits

BUCKETS = BucketOpen in _APPLY
NAMES = ["b/one", "b/two", "b/three", "c/one"]
UUIDS = ["u1", "u2", "u3", "u4"]


class Step(NamedTuple):
    """An intention. Which of its numbers mean something is for its kind to say."""

    kind: str
    name: str
    other: str
    uuid: str
    pick: int
    """Which of the offsets that there are."""
    late_ms: int
    """How far time goes on."""
    size: int
    flag: bool


names = st.sampled_from(["b/one"] * 4 + ["b/two"] * 3 + ["b/three"] * 2 + ["c/one"])
KINDS = (
    ["create"] * 3
    + ["append"] * 9
    + ["delete"] * 2
    + ["touch", "expire", "publish", "publish", "trim", "trim", "pin", "pin", "repeat"]
    + ["fork"] * 6
    + ["late fork", "unpin", "unpin", "resolve", "settle", "ack", *(["open", "fence"] if BUCKETS else [])]
)
steps = st.builds(
    Step,
    st.sampled_from(KINDS),
    names,
    names,
    st.sampled_from(UUIDS),
    st.integers(-3, 12),
    st.sampled_from([0] * 6 + [10, 50, 400, 1_000, 3_000]),
    st.integers(0, 7),
    st.booleans(),
)
histories = st.lists(st.lists(steps, min_size=1, max_size=3), max_size=30)


def offset_of(stream: ModelStream | None, pick: int) -> int:
    """A boundary, mostly of what it has; sometimes one beside."""
    if stream is None:
        return max(0, pick)
    places = sorted({stream.earliest, stream.start, stream.tail, *stream.boundaries(), *[r.end for r in stream.ranges]})
    return max(0, places[pick % len(places)] + (-1 if pick == 7 else 1 if pick == 8 else 0))


def uuid_of(uuid: str, source: str) -> str:
    """Few of them, but never one for two sources: whoever makes a fork draws one for it."""
    return f"{uuid} of {source}"


class Scribe:
    """Turns intentions into commands, by the model's state."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.pinned: dict[str, tuple[Pin, Pinned]] = {}  # by uuid: what a leader would go on with

    def commands(self, step: Step) -> list[Command]:
        write: Callable[[Step, int], list[Command]] = getattr(self, "_" + step.kind.replace(" ", "_"))
        return write(step, self.model.clock + step.late_ms)

    def _incarnation(self, step: Step) -> int:
        held = self.model.streams.get(step.name)
        return 0 if held is None or step.pick == 9 else held.incarnation

    def _settings(self, step: Step) -> tuple[int | None, int | None, str]:
        if step.pick == 3:
            return step.size % 3, None, ""
        if step.pick == 4:
            at_ms = self.model.clock + 100 * step.size
            return None, at_ms, str(at_ms)
        return None, None, ""

    def _parts(self, step: Step) -> list[bytes]:
        return [bytes([97 + number]) * (1 + (step.size + number) % 5) for number in range(step.size // 2)]

    def _create(self, step: Step, now_ms: int) -> list[Command]:
        parts = self._parts(step)
        content_type = "application/json" if step.name.endswith("one") and step.pick < 11 else "text/plain"
        retention = (step.size, None) if step.pick in (0, 1) else (None, step.size % 2) if step.pick in (2, 10) else (None, None)
        closed = step.pick == 5
        return [Create(step.name, content_type, now_ms, *self._settings(step), closed, b"".join(parts), lengths_of(parts), *retention)]

    def _append(self, step: Step, now_ms: int) -> list[Command]:
        parts = [*self._parts(step), b"z" * (1 + step.size)]
        at_ms = max(1, now_ms - 100 * step.pick) if step.pick > 6 else None
        key = "k" if step.flag else ""
        return [Append(step.name, b"".join(parts), now_ms, None, "", lengths_of(parts), step.pick == 6, None, key, at_ms)]

    def _delete(self, step: Step, now_ms: int) -> list[Command]:
        return [Delete(step.name, now_ms)]

    def _touch(self, step: Step, now_ms: int) -> list[Command]:
        return [Touch(step.name, self._incarnation(step), now_ms)]

    def _expire(self, step: Step, now_ms: int) -> list[Command]:
        return [Expire(step.name, self._incarnation(step), now_ms)]

    def _publish(self, step: Step, now_ms: int) -> list[Command]:
        held = self.model.streams.get(step.name)
        aligned = self._incarnation(step) if step.flag else 0
        return [PublishSnapshot(step.name, offset_of(held, step.pick), "t", b"s" * step.size, now_ms, aligned)]

    def _trim(self, step: Step, now_ms: int) -> list[Command]:
        held = self.model.streams.get(step.name)
        if held is None or (held.retention_bytes, held.retention_age_s) == (None, None):
            return []  # nobody proposes it
        offset = offset_of(held, step.pick)
        wanted = self.model.trims(now_ms) if step.flag else {}
        return [Trim(step.name, self._incarnation(step), wanted.get(step.name, offset), now_ms)]

    def _pin(self, step: Step, now_ms: int) -> list[Command]:
        held = self.model.streams.get(step.name)
        anchor = NOW if step.pick == 0 else offset_of(held, step.pick)
        content_type = ["", "", "text/plain; x=y", "application/json"][step.size % 4]
        resolved = self._incarnation(step) if step.flag and step.pick < 7 else 0  # a leader resolves to boundaries only
        sub_offset = 0 if resolved else max(0, step.size - 3)
        return [Pin(step.name, uuid_of(step.uuid, step.name), step.other, anchor, sub_offset, content_type, now_ms, resolved)]

    def _fork(self, step: Step, now_ms: int) -> list[Command]:
        """As service/forks.py goes about it, with the two commands in a row."""
        held = self.model.streams.get(step.name)
        anchor = None if step.pick == 0 else offset_of(held, step.pick)
        sub_offset = step.size % 3 if step.flag and anchor is not None else 0
        inherited = held is not None and anchor is not None and held.earliest <= anchor < held.start
        resolved = held.incarnation if held is not None and inherited and not sub_offset else 0
        uuid = uuid_of(step.uuid, step.name)
        pin = Pin(step.name, uuid, step.other, NOW if anchor is None else anchor, sub_offset, "", now_ms, resolved)
        return [pin]

    def create_fork(self, uuid: str, step: Step, now_ms: int) -> list[Command]:
        if uuid not in self.pinned:
            return []
        pin, found = self.pinned[uuid]
        parts = self._parts(step) if step.flag else []
        settings = (found.ttl_s, found.expires_at_ms, found.expires_at) if step.flag else (None, None, "")
        anchor = None if pin.anchor == NOW else pin.anchor
        point = (anchor, pin.sub_offset, found.offset, found.earliest, list(found.ranges))
        body = (step.pick == 5, b"".join(parts), lengths_of(parts), step.size if step.pick == 1 else None)
        return [CreateFork(pin.fork, uuid, pin.stream, found.incarnation, *point, found.content_type, now_ms, *settings, *body)]

    def _late_fork(self, step: Step, now_ms: int) -> list[Command]:
        return self.create_fork(uuid_of(step.uuid, step.name), step, now_ms)

    def _repeat(self, step: Step, now_ms: int) -> list[Command]:
        """A fork that is made again, perhaps asked for in other words."""
        held = self.model.streams.get(step.name)
        if held is None or held.forked is None:
            return []
        made = held.forked
        anchor = [made.anchor, made.offset, None][step.size % 3]
        settings = (held.ttl_s, held.expires_at_ms, held.expires_at, held.closed, b"", b"", held.retention_bytes, held.retention_age_s)
        point = (anchor, made.sub_offset, made.offset, made.earliest, list(made.ranges))
        source = made.source if step.pick else step.other
        return [CreateFork(step.name, uuid_of(step.uuid, step.other), source, made.source_incarnation, *point, made.content_type, now_ms, *settings)]

    def _of_pin(self, step: Step) -> tuple[str, int, str]:
        """A pin that there is, or one that there is not."""
        for name in sorted(self.model.streams):
            stream = self.model.streams[name]
            if uuid_of(step.uuid, name) in stream.pins and step.pick != 9:
                return name, stream.incarnation, uuid_of(step.uuid, name)
        return step.name, self._incarnation(step), uuid_of(step.uuid, step.name)

    def _unpin(self, step: Step, now_ms: int) -> list[Command]:
        if step.flag and self.model.outbox:  # what the outbox sends
            owed = self.model.outbox[min(self.model.outbox)]
            return [Unpin(owed.stream, owed.incarnation, owed.uuid, now_ms)]
        return [Unpin(*self._of_pin(step), now_ms)]

    def _resolve(self, step: Step, now_ms: int) -> list[Command]:
        return [ResolveFork(step.name, uuid_of(step.uuid, step.other), now_ms)]

    def _settle(self, step: Step, now_ms: int) -> list[Command]:
        return [SettlePin(*self._of_pin(step), step.flag, now_ms)]

    def _ack(self, step: Step, now_ms: int) -> list[Command]:
        return [AckOutbox([number for number in sorted(self.model.outbox) if step.flag or number % 2], now_ms)]

    def _open(self, step: Step, now_ms: int) -> list[Command]:
        return [BucketOpen(step.name[0], max(0, step.pick), now_ms)]

    def _fence(self, step: Step, now_ms: int) -> list[Command]:
        return [BucketFence(step.other[0], max(0, step.pick), now_ms), BucketOpen(step.other[0], 12, now_ms)][: 1 + step.flag]


def play(histories: list[list[Step]], after: Callable[[StreamMachine, Model, int], StreamMachine]) -> tuple[StreamMachine, Model]:
    """Both do the same; `after` each entry somebody may look, and hand back the machine to go on with."""
    machine, model = StreamMachine(), Model(producers_max=PRODUCERS_MAX, idle_ms=IDLE_MS, buckets_checked=BUCKETS)
    scribe = Scribe(model)
    index = 1
    first: list[Command] = [BucketOpen("b", 0, 0), BucketOpen("c", 0, 0)] if BUCKETS else []
    assert machine.apply_commands(index, first) == [model.apply(index, place, command) for place, command in enumerate(first)]
    for entry in histories:
        index += 1
        batch: list[Command] = []
        expected = []
        for step in entry:
            todo = scribe.commands(step)
            while todo:
                command = todo.pop(0)
                result = model.apply(index, len(batch), command)
                batch.append(command)
                expected.append(result)
                if isinstance(command, Pin) and isinstance(result, Pinned):
                    scribe.pinned[command.uuid] = (command, result)
                    if step.kind == "fork":
                        todo += scribe.create_fork(command.uuid, step, model.clock)
        assert machine.apply_commands(index, batch) == expected
        machine = after(machine, model, index)
    return machine, model


def restored(machine: StreamMachine, bytes_max: int) -> StreamMachine:
    again = StreamMachine.restore(list(machine.freeze().slices(bytes_max)))
    assert again.digest() == machine.digest()
    assert again.hot_bytes == machine.hot_bytes
    return again


def assert_same(machine: StreamMachine, model: Model) -> None:
    """What there is, and what is kept for whom."""
    table = machine._table
    assert machine.now_ms == model.clock
    assert sorted(table.streams) == sorted(model.streams)
    held = sum(stream.tail - stream.needed_from() for stream in model.streams.values())
    published = sum(len(s.snapshot.body) for s in model.streams.values() if s.snapshot is not None and not s.soft_deleted)
    assert machine.hot_bytes == held + published
    assert table.refused == model.refused
    assert {n: (o.stream, o.incarnation, o.uuid) for n, o in table.outbox.entries.items()} == {
        n: (o.stream, o.incarnation, o.uuid) for n, o in model.outbox.items()
    }
    for name, wanted in model.streams.items():
        rare = table.streams[name].rare
        pins = {} if rare is None or rare.pins is None else rare.pins
        assert {u: (p.fork, p.earliest, p.offset, p.pending) for u, p in pins.items()} == {
            u: (p.fork, p.pinned.earliest, p.pinned.offset, p.pending) for u, p in wanted.pins.items()
        }
    pending = {uuid: name for name, stream in model.streams.items() for uuid, pin in stream.pins.items() if pin.pending}
    assert table.pending_pins == pending
    late_ms = model.clock + 10_000
    due = {(type(command), command.stream, command.offset if isinstance(command, Trim) else 0) for command in machine.due(late_ms)}
    late = [(Trim, name, offset) for name, offset in model.trims(late_ms).items()]
    late += [(Expire, name, 0) for name, stream in model.streams.items() if not stream.soft_deleted and stream.gone(late_ms)]
    assert due == set(late)


def assert_answers(machine: StreamMachine, model: Model) -> None:
    def same(query: Query, now_ms: int = 0) -> None:
        assert machine.query(query, now_ms) == model.query(query, now_ms), query

    for bucket in ("b", "c", "none"):
        same(BucketCount(bucket))
    for prefix, after, limit in (("", "", 9), ("b/", "", 2), ("b/", "b/one", 1)):
        same(ListStreams(prefix, after, limit))
        same(ListStreams(prefix, after, limit, True))
    for name in NAMES:
        same(Head(name), model.clock + 200)
        held = model.streams.get(name)
        for offset in {-1, 0, 5, 0 if held is None or held.snapshot is None else held.snapshot.offset}:
            same(ReadSnapshot(name, offset, offset != 5))
        if held is None:
            same(ReadAt(name, 0, 9))
            continue
        same(ReadMessages(name, held.earliest, 9, held.incarnation + 1))
        made = held.forked
        for source, anchor, sub in {(s, a, o) for s in NAMES for a in (None, 0 if made is None else made.offset) for o in (0, 1)}:
            same(ForkLook(name, source, anchor, sub, "", None, None, held.closed, held.retention_bytes, None))
            same(ForkLook(name, source, anchor, sub, "text/plain", held.ttl_s, 300, False, None, held.retention_age_s))
        for offset in (START, NOW, *range(0, held.tail + 2, 1 + held.tail // 20)):
            for key, max_bytes in ((None, 1), (None, 7), (None, 100), ("", 7), ("k", 7)):
                same(ReadAt(name, offset, max_bytes, key), model.clock + 200)
            same(ReadMessages(name, offset, 8, held.incarnation, key="k" if offset % 2 else None))
        for since_ms in {0, model.clock, *[message.time_ms for message in held.messages], *[message.time_ms + 1 for message in held.messages]}:
            same(ReadAt(name, START, 9, None, since_ms))
            same(ReadMessages(name, START, 9, 0, key="k", since_ms=since_ms))
        for end in held.boundaries():
            same(ReadMessages(name, max(held.start, held.earliest), 20, end=max(end, held.earliest)))
        parts = [part for pin in held.pins.values() for part in clipped(pin.pinned.ranges, held.start, held.tail)]
        for part in parts[:2]:
            assert_inherited(same, part, held)


def assert_inherited(same: Callable[..., None], part: Range, held: ModelStream) -> None:
    if part.incarnation != held.incarnation:
        return
    for offset in range(part.start, part.end + 1, 1 + (part.end - part.start) // 20):
        for key, max_bytes in ((None, 1), (None, 9), ("k", 9)):
            same(ReadInherited(part.stream, part.incarnation, offset, part.end, max_bytes, key))
        for sub_offset in (0, 1, 2, 9):
            if offset < part.end:
                same(PointAt(part.stream, part.incarnation, offset, part.end, sub_offset, held.is_json))
    for since_ms in {0, *[message.time_ms for message in held.messages]}:
        same(ReadInherited(part.stream, part.incarnation, part.start, part.end, 9, None, since_ms))
    same(ReadInherited(part.stream, part.incarnation + 1, part.start, part.end, 9))


@given(histories, st.integers(0, 30), st.integers(1, 300))
def test_any_commands_leave_the_state_of_the_model(histories: list[list[Step]], restart_at: int, bytes_max: int) -> None:
    """Also with a restart from a snapshot on the way, and what was frozen stays what it was while entries go on being applied."""
    kept: list[Any] = []

    def after(machine: StreamMachine, model: Model, index: int) -> StreamMachine:
        if index != restart_at:
            return machine
        kept.extend((machine.freeze(), machine.digest()))
        assert_same(machine, model)
        assert_same(restored(machine, bytes_max), model)
        return restored(machine, bytes_max) if bytes_max % 2 else machine

    with small_limits():
        machine, model = play(histories, after)
        assert_same(machine, model)
        assert_same(restored(machine, bytes_max), model)
        if kept:
            assert StreamMachine.restore(list(kept[0].slices(bytes_max))).digest() == kept[1]


@given(histories, st.integers(0, 30))
def test_any_question_is_answered_like_the_model(histories: list[list[Step]], restart_at: int) -> None:
    with small_limits():
        machine, model = play(histories, lambda machine, _, index: restored(machine, 50) if index == restart_at else machine)
        assert_answers(machine, model)
        assert_answers(restored(machine, 1_000), model)
