"""What clients saw: one Op per try, recorded while a run goes on and judged afterwards (stream_checker.py, wgl.py).

Times are integers that only rise: event numbers, or nanoseconds of one clock. An op that completed before another was invoked precedes it;
equal times are concurrent. What an answer did not say stays at its default.

Two duties of whoever records:
* a payload belongs to one logical append: only a retry of the same producer tuple may carry it again, and no payload is a prefix of another
  (start each with a fixed-width number and the question does not arise);
* `refused` means that the server said so (definite). Everything else without an ok answer is `unknown`, and may still happen later."""

from dataclasses import dataclass, field

CREATE, APPEND, READ = "create", "append", "read"
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"

# Refusals that say something about the state, named like the types in core/stream/results.py.
STREAM_NOT_FOUND = "StreamNotFound"
STREAM_EXISTS = "StreamExists"
STALE_EPOCH = "StaleEpoch"
BAD_EPOCH_START = "BadEpochStart"
SEQUENCE_GAP = "SequenceGap"
OFFSET_BEYOND_TAIL = "OffsetBeyondTail"
OFFSET_INSIDE_MESSAGE = "OffsetInsideMessage"

INFORMATIVE = {
    CREATE: {STREAM_EXISTS},
    APPEND: {STREAM_NOT_FOUND, STALE_EPOCH, BAD_EPOCH_START, SEQUENCE_GAP},
    READ: {STREAM_NOT_FOUND, OFFSET_BEYOND_TAIL, OFFSET_INSIDE_MESSAGE},
}
"""By kind of op. Any other refusal (NotLeader, Overloaded, TooManyProducers, ...) is believed to mean just: it did not happen."""

ProducerTuple = tuple[str, int, int]
"""(producer id, epoch, seq)"""


@dataclass(slots=True, eq=False)
class Op:
    number: int
    client: str | int
    kind: str
    stream: str
    invoked: int
    payload: bytes = b""
    """The body of an append; what a read returned."""
    producer: ProducerTuple | None = None
    content_type: str = ""
    """What a create asked for."""
    start: int = 0
    """Where an append starts; where a read was asked to start."""
    completed: int | None = None
    """None: the client never heard. Ignored unless the outcome is ok or refused: an unknown one may happen at any later time."""
    outcome: str = UNKNOWN
    next: int = 0
    """Where an append or a read ends; the offset that a create answered."""
    flag: bool = False
    """append: it was a duplicate; create: the stream existed; read: up to date."""
    refusal: str = ""
    detail: int = 0
    """The figure in a refusal: StaleEpoch.current, SequenceGap.expected, OffsetBeyondTail.tail; the others have none that is checked."""

    def __str__(self) -> str:
        what = {APPEND: f"{short(self.payload)}", READ: f"from {self.start}", CREATE: self.content_type}[self.kind]
        who = "" if self.producer is None else " as {}/{}/{}".format(*self.producer)
        times = f"[{self.invoked}..{'' if self.completed is None else self.completed}]"
        return f"#{self.number} {times} client {self.client} {self.kind} {self.stream} {what}{who} -> {self._answer()}"

    def _answer(self) -> str:
        if self.outcome == UNKNOWN:
            return "unknown"
        if self.outcome == REFUSED:
            return f"{self.refusal}({self.detail})" if self.detail else self.refusal or "refused"
        word = {APPEND: "duplicate", CREATE: "existed", READ: "up to date"}[self.kind]
        flag = f" {word}" if self.flag else ""
        return f"{self.next}{flag}" if self.kind == CREATE else f"[{self.start}:{self.next}]{flag}"


def short(payload: bytes) -> str:
    return repr(payload if len(payload) <= 24 else payload[:24] + b"...")


@dataclass(slots=True)
class History:
    """Ops in the order of their invocation. One of the three `invoke` methods, then at most one of the four answers."""

    ops: list[Op] = field(default_factory=list)

    def invoke_create(self, client: str | int, stream: str, now: int, content_type: str = "") -> Op:
        return self._invoke(Op(len(self.ops), client, CREATE, stream, now, content_type=content_type))

    def invoke_append(self, client: str | int, stream: str, now: int, payload: bytes, producer: ProducerTuple | None = None) -> Op:
        return self._invoke(Op(len(self.ops), client, APPEND, stream, now, payload, producer))

    def invoke_read(self, client: str | int, stream: str, now: int, offset: int) -> Op:
        return self._invoke(Op(len(self.ops), client, READ, stream, now, start=offset))

    def _invoke(self, op: Op) -> Op:
        self.ops.append(op)
        return op


def created(op: Op, now: int, offset: int, existed: bool) -> None:
    op.completed, op.outcome, op.next, op.flag = now, OK, offset, existed


def appended(op: Op, now: int, start: int, next_offset: int, duplicate: bool) -> None:
    op.completed, op.outcome, op.start, op.next, op.flag = now, OK, start, next_offset, duplicate


def read(op: Op, now: int, data: bytes, next_offset: int, up_to_date: bool) -> None:
    op.completed, op.outcome, op.payload, op.next, op.flag = now, OK, data, next_offset, up_to_date


def refused(op: Op, now: int, refusal: str, detail: int = 0) -> None:
    op.completed, op.outcome, op.refusal, op.detail = now, REFUSED, refusal, detail


def unknown(op: Op, now: int) -> None:
    op.completed, op.outcome = now, UNKNOWN
