"""What became of a command or a read: typed values, never exceptions. One table in web/errors.py will give each its HTTP answer.

Every refusal here is definite: it was decided by applied state, and the command changed nothing but the group's clock. Outcomes that are
unknown (leadership lost while waiting) are not ours; they belong to the engine. Tags are never reused: results travel to forwarding nodes."""

from typing import ClassVar

from msgspec import Struct

from anabranch_node.core.stream.commands import Range


class Created(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """`offset` is the tail: 0 for a new stream, where the next append goes for one that `existed` with the same settings."""

    offset: int
    existed: bool
    closed: bool = False
    incarnation: int = 0
    content_type: str = ""
    """Of a fork, which may have inherited it."""


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
        return f"stream {self.stream} exists with other settings (its content type is {self.content_type})"


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


class SnapshotPublished(Struct, frozen=True, array_like=True, tag=5, gc=False):
    offset: int


class TrimDone(Struct, frozen=True, array_like=True, tag=6, gc=False):
    """Trim: the earliest offset is at least the one asked for, or no longer needed to be."""


class Pinned(Struct, frozen=True, array_like=True, tag=7, gc=False):
    """What a fork needs to know of its source. `ranges` hold [earliest, offset) of the fork-to-be."""

    incarnation: int
    offset: int
    earliest: int
    content_type: str
    ttl_s: int | None
    expires_at_ms: int | None
    expires_at: str
    ranges: list[Range]
    last_append_ms: int = 0
    """Append time of the last message before `offset`: the fork's own do not go back behind it."""


class PointElsewhere(Struct, frozen=True, array_like=True, tag=8, gc=False):
    """The point lies in the inherited part: ask PointAt of these, oldest first, and then again. Nothing happened."""

    incarnation: int
    ranges: list[Range]
    is_json: bool


class Unpinned(Struct, frozen=True, array_like=True, tag=9, gc=False):
    """Unpin, SettlePin, AckOutbox: done, now or before."""


class ForkResolved(Struct, frozen=True, array_like=True, tag=40, gc=False):
    alive: bool


class BucketOpened(Struct, frozen=True, array_like=True, tag=41, gc=False):
    pass


class BucketFenced(Struct, frozen=True, array_like=True, tag=42, gc=False):
    """Streams of the bucket in this group, soft-deleted ones included."""

    streams: int


class Touched(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Touch: done, or no longer needed (another incarnation, no window): either way the read may be answered."""


class NotDue(Refusal, frozen=True, tag=22):
    """Expire: the stream was touched meanwhile, or is another one."""


class StreamGone(Refusal, frozen=True, tag=23):
    """Deleted or expired, and kept for its forks only."""

    stream: str

    def __str__(self) -> str:
        return f"stream {self.stream} was deleted"


class NameHeld(Refusal, frozen=True, tag=24):
    """Create: a deleted stream of this name is kept for its forks. Fork: its source is one."""

    stream: str

    def __str__(self) -> str:
        return f"stream {self.stream} was deleted and is kept for its forks"


class Trimmed(Refusal, frozen=True, tag=25):
    """The offset lies before the earliest one that is still shown."""

    earliest: int

    def __str__(self) -> str:
        return f"what lies before offset {self.earliest} is no longer shown: read from there, or bootstrap"


class NoSnapshot(Refusal, frozen=True, tag=26):
    """There is no published snapshot, or not at this offset."""

    def __str__(self) -> str:
        return "there is no such snapshot"


class ForkTooLate(Refusal, frozen=True, tag=27):
    """The pin of this fork was given up meanwhile."""

    def __str__(self) -> str:
        return "making this fork took too long; try again"


class SubOffsetBeyond(Refusal, frozen=True, tag=28):
    """Stream-Fork-Sub-Offset passes the message at the anchor, or the end of the stream."""

    def __str__(self) -> str:
        return "Stream-Fork-Sub-Offset lies beyond the message at the fork offset, or beyond the stream"


class BucketUnknown(Refusal, frozen=True, tag=29):
    """Create: this group does not know that the bucket is open. The asker reads the meta group, and opens it here or gives up."""

    bucket: str

    def __str__(self) -> str:
        return f"bucket {self.bucket} does not exist"


class StaleOpen(Refusal, frozen=True, tag=33):
    """BucketOpen: the meta group was read before the latest fence here."""


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
    snapshot_offset: int = -1
    retention_bytes: int | None = None
    retention_age_s: int | None = None


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
    tail: int = 0
    behind: bool = False
    """next_offset lies in the inherited part of a fork."""


class MessageSlice(Struct, frozen=True, array_like=True, tag=34, gc=False):
    """Like a ReadSlice, with the length of each message: u32 little-endian each. `found` is where `since_ms` led; `start` otherwise."""

    start: int
    next_offset: int
    data: bytes
    lengths: bytes
    incarnation: int
    up_to_date: bool = False
    content_type: str = ""
    closed: bool = False
    touch_due: bool = False
    tail: int = 0
    found: int = -1
    """ReadInherited with since_ms: the first message from then on, -1 if there is none in this range."""


class Inherited(Struct, frozen=True, array_like=True, tag=35, gc=False):
    """A read of a fork before its fork point: first `ranges`, from `offset` on, then what `own` says of its own part (from the fork point)."""

    offset: int
    ranges: list[Range]
    own: ReadSlice | MessageSlice

    @property
    def touch_due(self) -> bool:
        return self.own.touch_due

    @property
    def incarnation(self) -> int:
        return self.own.incarnation


class Point(Struct, frozen=True, array_like=True, tag=36, gc=False):
    """`left`: how much of the sub-offset lies beyond `end` of the range; then `offset` is that end."""

    offset: int
    left: int


class SnapshotBlob(Struct, frozen=True, array_like=True, tag=37, gc=False):
    """`tail` of the stream, for whether there is more behind the snapshot."""

    offset: int
    content_type: str
    data: bytes
    tail: int
    closed: bool
    incarnation: int
    touch_due: bool = False


class StreamRow(Struct, frozen=True, array_like=True, gc=False):
    """What a listing tells of a stream."""

    content_type: str
    tail: int
    closed: bool
    created_ms: int
    last_write_ms: int
    expires_at: str = ""


class StreamPage(Struct, frozen=True, array_like=True, tag=32, gc=False):
    """Names of streams in order, behind `after`; `more`: the page was cut at its limit."""

    names: list[str]
    more: bool
    rows: list[StreamRow] = []
    """With `details`: one for each name."""
    count: int = 0
    """With `details`: all streams of this group with that prefix."""


CreateResult = Created | StreamExists | ContentTypeMismatch | NameHeld | BucketUnknown | ForkTooLate
AppendResult = (
    Appended
    | StreamNotFound
    | StreamGone
    | EmptyBody
    | StaleEpoch
    | BadEpochStart
    | SequenceGap
    | TooManyProducers
    | StreamClosed
    | ContentTypeMismatch
    | SeqRegression
)
PublishResult = SnapshotPublished | StreamNotFound | StreamGone | OffsetBeyondTail | OffsetInsideMessage | Trimmed | PointElsewhere
PinResult = (
    Pinned | PointElsewhere | StreamNotFound | NameHeld | OffsetBeyondTail | OffsetInsideMessage | Trimmed | ContentTypeMismatch | SubOffsetBeyond
)
CrossResult = PinResult | Unpinned | ForkResolved | BucketOpened | BucketFenced | StaleOpen
Result = CreateResult | AppendResult | Deleted | Touched | NotDue | PublishResult | TrimDone | CrossResult
ReadResult = ReadSlice | StreamNotFound | OffsetBeyondTail | OffsetInsideMessage | StreamGone | Trimmed | Inherited
LookResult = Created | StreamExists | NameHeld
QueryResult = ReadResult | StreamInfo | StreamPage | MessageSlice | Point | SubOffsetBeyond | SnapshotBlob | NoSnapshot | BucketFenced | LookResult
