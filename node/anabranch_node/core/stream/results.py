"""What became of a command or a read: typed values, never exceptions. One table in web/errors.py will give each its HTTP answer.

Every refusal here is definite: it was decided by applied state, and the command changed nothing but the group's clock. Outcomes that are
unknown (leadership lost while waiting) are not ours; they belong to the engine. Tags are never reused: results travel to forwarding nodes."""

from typing import ClassVar

from msgspec import Struct


class Created(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """`offset` is the tail: 0 for a new stream, where the next append goes for one that `existed` with the same settings."""

    offset: int
    existed: bool
    closed: bool = False
    incarnation: int = 0


class Appended(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The message lies at [start_offset, next_offset).

    A duplicate of the producer's last append answers the original's offsets. For an older one they are no longer kept: both are the
    current tail, so start_offset == next_offset tells the two apart (no message is empty)."""

    start_offset: int
    next_offset: int
    duplicate: bool = False
    closed: bool = False
    """The stream is closed now, by this command or before it."""
    producer: bool = False
    epoch: int = 0
    seq: int = 0
    """With `producer`: its epoch and the highest sequence number taken, as the answer names them."""


class Refusal(Struct, frozen=True, array_like=True, gc=False):
    """The command or read was refused, and nothing happened."""

    definite: ClassVar[bool] = True

    def __str__(self) -> str:
        return type(self).__name__


class StreamNotFound(Refusal, frozen=True, tag=10):
    stream: str

    def __str__(self) -> str:
        return f"stream {self.stream} does not exist"


class StreamExists(Refusal, frozen=True, tag=11):
    """It exists with other settings than the create asked for."""

    stream: str
    content_type: str

    def __str__(self) -> str:
        return f"stream {self.stream} exists with content type {self.content_type}"


class EmptyBody(Refusal, frozen=True, tag=12):
    """A message of no bytes would share its offset with the next one."""

    stream: str

    def __str__(self) -> str:
        return f"an append to {self.stream} needs at least one byte"


class StaleEpoch(Refusal, frozen=True, tag=13):
    """A later incarnation of this producer has written: the sender is a zombie."""

    current: int
    received: int

    def __str__(self) -> str:
        return f"producer epoch {self.received} is fenced by epoch {self.current}"


class BadEpochStart(Refusal, frozen=True, tag=14):
    """A new epoch of a known producer starts at sequence 0."""

    epoch: int
    received: int

    def __str__(self) -> str:
        return f"producer epoch {self.epoch} is new and must start at sequence 0, not {self.received}"


class SequenceGap(Refusal, frozen=True, tag=15):
    """Something between is missing. An unknown producer is expected to start at 0."""

    expected: int
    received: int

    def __str__(self) -> str:
        return f"producer sequence {self.received} leaves a gap: {self.expected} is expected"


class TooManyProducers(Refusal, frozen=True, tag=16):
    """The stream's table is full and none of its producers has been idle long enough to be forgotten."""

    producers_max: int

    def __str__(self) -> str:
        return f"the stream already has {self.producers_max} active producers"


class OffsetBeyondTail(Refusal, frozen=True, tag=17):
    offset: int
    tail: int

    def __str__(self) -> str:
        return f"offset {self.offset} is beyond the tail {self.tail}"


class OffsetInsideMessage(Refusal, frozen=True, tag=18):
    """`before` and `after` are the nearest message boundaries."""

    offset: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"offset {self.offset} is inside the message at [{self.before}, {self.after})"


class StreamClosed(Refusal, frozen=True, tag=19):
    """No append after the close."""

    tail: int

    def __str__(self) -> str:
        return f"the stream is closed at {self.tail}"


class ContentTypeMismatch(Refusal, frozen=True, tag=20):
    expected: str

    def __str__(self) -> str:
        return f"the stream has content type {self.expected}"


class SeqRegression(Refusal, frozen=True, tag=21):
    """`Stream-Seq` did not rise."""

    last: str

    def __str__(self) -> str:
        return f"Stream-Seq must be greater than {self.last!r}"


class Deleted(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Delete and Expire: the stream is gone."""

    incarnation: int


class Touched(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Touch: done, or no longer needed (another incarnation, no window): either way the read may be answered."""


class NotDue(Refusal, frozen=True, tag=22):
    """Expire: the stream was touched meanwhile, or is another one."""


class StreamInfo(Struct, frozen=True, array_like=True, tag=31, gc=False):
    """What HEAD tells. `touch_due`: the sliding window is stale enough that a read must propose a Touch before it answers."""

    incarnation: int
    content_type: str
    tail: int
    earliest: int
    closed: bool
    ttl_s: int | None
    expires_at: str
    touch_due: bool


class ReadSlice(Struct, frozen=True, array_like=True, tag=30, gc=False):
    """Whole messages of [start, next_offset), end to end. `up_to_date`: next_offset is the tail."""

    start: int
    next_offset: int
    data: bytes
    up_to_date: bool
    incarnation: int
    content_type: str = ""
    closed: bool = False
    touch_due: bool = False


class StreamPage(Struct, frozen=True, array_like=True, tag=32, gc=False):
    """Names of streams in order, behind `after`; `more`: the page was cut at its limit."""

    names: list[str]
    more: bool


CreateResult = Created | StreamExists | ContentTypeMismatch
AppendResult = (
    Appended
    | StreamNotFound
    | EmptyBody
    | StaleEpoch
    | BadEpochStart
    | SequenceGap
    | TooManyProducers
    | StreamClosed
    | ContentTypeMismatch
    | SeqRegression
)
Result = CreateResult | AppendResult | Deleted | Touched | NotDue
ReadResult = ReadSlice | StreamNotFound | OffsetBeyondTail | OffsetInsideMessage
QueryResult = ReadResult | StreamInfo | StreamPage
