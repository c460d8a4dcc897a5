"""THE spelling of each operation: one type in the log, on the wire and at apply.

Before us: web/write.py makes a command, the leader stamps `now_ms` and proposes. After us: machine.py applies it on every replica.
The payload of a COMMANDS_V1 entry (raft/entry.py) is a msgpack array of commands, each an array that starts with its tag.

Rules, for ever: tags are never reused; fields are only appended, with defaults, so that old payloads still decode. A payload with an unknown tag
or with more fields than we know is refused (the group is fenced): a replica that skipped what it does not know would hold another state
than its peers. So whoever appends a field also adds an entry version and lets the cluster version decide when it is written."""

from typing import Final

import msgspec
from msgspec import Struct


class MalformedCommands(ValueError):
    """The payload of a log entry is no list of commands that this version knows. Its checksum was right, so a program wrote it so."""


class Producer(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The exactly-once tuple of an append. `seq` counts from 0 within an epoch; a restarted producer raises its epoch."""

    id: str
    epoch: int
    seq: int


class Create(Struct, frozen=True, array_like=True, tag=1, gc=False, forbid_unknown_fields=True):
    """`stream` is "bucket/name", here and everywhere in the core. A body is appended as the first message(s); `closed` closes after it.

    At most one of `ttl_s` (sliding window) and `expires_at_ms` (absolute) is given. `expires_at` is that time as the client spelt it.
    Refused with BucketUnknown in a bucket that this group does not know to be open (BucketOpen)."""

    stream: str
    content_type: str
    now_ms: int
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_at: str = ""
    closed: bool = False
    body: bytes = b""
    lengths: bytes = b""
    retention_bytes: int | None = None
    """Keep about this many bytes: older messages are trimmed."""
    retention_age_s: int | None = None
    """Trim messages that are older than this."""


class Append(Struct, frozen=True, array_like=True, tag=2, gc=False, forbid_unknown_fields=True):
    """One or more messages, all or nothing, with the producer state and the close. Its time is the group's clock after this command: never earlier
    than any before it, whatever `now_ms` says."""

    stream: str
    body: bytes
    """In JSON mode each message is its own bytes and a comma. Empty: only with `close`."""
    now_ms: int
    producer: Producer | None = None
    content_type: str = ""
    """As the client sent it; empty: not compared (a close without a body)."""
    lengths: bytes = b""
    """Of the messages in `body`, u32 little-endian each; empty: the body is one message."""
    close: bool = False
    seq: str | None = None
    """`Stream-Seq`: must be greater, byte by byte, than the last one."""
    key: str = ""
    """Routing key of all messages of this append; empty: none."""
    timestamp_ms: int | None = None
    """`Stream-Timestamp`: the append time asked for, clamped to [last append time of the stream, now]."""


class Delete(Struct, frozen=True, array_like=True, tag=3, gc=False, forbid_unknown_fields=True):
    stream: str
    now_ms: int


class Touch(Struct, frozen=True, array_like=True, tag=4, gc=False, forbid_unknown_fields=True):
    """Somebody reads a stream with a sliding window: it starts again at `now_ms`. Names the incarnation that was read."""

    stream: str
    incarnation: int
    now_ms: int


class Expire(Struct, frozen=True, array_like=True, tag=5, gc=False, forbid_unknown_fields=True):
    """The leader's clock says that this stream is due; apply decides by the group's clock whether it is."""

    stream: str
    incarnation: int
    now_ms: int


# --- what a client publishes, and what is let go --------------------------------------------------------------------------------


class PublishSnapshot(Struct, frozen=True, array_like=True, tag=6, gc=False, forbid_unknown_fields=True):
    """The client's own fold of everything before `offset`, which becomes the earliest offset. Answered by SnapshotPublished, StreamNotFound,
    StreamGone, OffsetBeyondTail, OffsetInsideMessage, Trimmed, or PointElsewhere (nothing happened: see `aligned`)."""

    stream: str
    offset: int
    content_type: str
    body: bytes
    now_ms: int
    aligned: int = 0
    """Incarnation for which the asker has found out that `offset`, in the inherited part of a fork, is a message boundary (PointAt); 0: not asked."""


class Trim(Struct, frozen=True, array_like=True, tag=7, gc=False, forbid_unknown_fields=True):
    """Retention: what lies before `offset`, a message boundary, is no longer shown. Proposed by the leader (machine.due()); apply decides again."""

    stream: str
    incarnation: int
    offset: int
    now_ms: int


# --- work across groups: forks (core/cross/pins.py, outbox.py) ----------------------------------------------------------------------


class Range(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """[start, end) of a fork's offsets is the same range of that incarnation of another stream."""

    stream: str
    incarnation: int
    start: int
    end: int


class Pin(Struct, frozen=True, array_like=True, tag=8, gc=False, forbid_unknown_fields=True):
    """To the source's group: keep what lies before the fork point for the fork-to-be `fork`. Answered by Pinned, PointElsewhere, or a refusal."""

    stream: str
    uuid: str
    fork: str
    anchor: int
    """Offset of the source; queries.NOW: its tail."""
    sub_offset: int
    """JSON messages or bytes past the anchor."""
    content_type: str
    """Must be the source's; empty: whatever it has."""
    now_ms: int
    resolved: int = 0
    """Incarnation of the source for which the asker has found out that `anchor`, with sub_offset 0, is a point to fork at; 0: not asked."""


class CreateFork(Struct, frozen=True, array_like=True, tag=9, gc=False, forbid_unknown_fields=True):
    """To the fork's group, with what Pinned said. Answered by Created, StreamExists, NameHeld, ForkTooLate or BucketUnknown."""

    stream: str
    uuid: str
    source: str
    source_incarnation: int
    anchor: int | None
    """As asked for; None: none was given. With `sub_offset` what a repeated PUT is compared with."""
    sub_offset: int
    offset: int
    """The fork point."""
    earliest: int
    ranges: list[Range]
    """Where the inherited part lies, from `earliest` to `offset`, oldest first: flat, whatever the chain of forks."""
    content_type: str
    now_ms: int
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_at: str = ""
    closed: bool = False
    body: bytes = b""
    lengths: bytes = b""
    retention_bytes: int | None = None
    retention_age_s: int | None = None
    last_append_ms: int = 0
    """Of what is inherited."""


class Unpin(Struct, frozen=True, array_like=True, tag=10, gc=False, forbid_unknown_fields=True):
    """To the source's group: that fork is gone. Idempotent, answered by Unpinned. The last one frees a soft-deleted source."""

    stream: str
    incarnation: int
    uuid: str
    now_ms: int


class ResolveFork(Struct, frozen=True, array_like=True, tag=11, gc=False, forbid_unknown_fields=True):
    """To the fork's group, from the leader of a group with an old pending pin: does that fork exist? If not, its uuid is refused from now on,
    for ever. Answered by ForkResolved."""

    stream: str
    uuid: str
    now_ms: int


class SettlePin(Struct, frozen=True, array_like=True, tag=12, gc=False, forbid_unknown_fields=True):
    """In the source's group: what ResolveFork answered. Alive: the pin is no longer pending; otherwise it is dropped. Answered by Unpinned."""

    stream: str
    incarnation: int
    uuid: str
    alive: bool
    now_ms: int


class AckOutbox(Struct, frozen=True, array_like=True, tag=13, gc=False, forbid_unknown_fields=True):
    """These entries of this group's outbox were acknowledged by their receivers. Answered by Unpinned."""

    numbers: list[int]
    now_ms: int


# --- work across groups: buckets (core/cross/fences.py) ------------------------------------------------------------------------------


class BucketOpen(Struct, frozen=True, array_like=True, tag=14, gc=False, forbid_unknown_fields=True):
    """The bucket exists as of `meta_index` of the meta group, which was read linearizably. Answered by BucketOpened; by StaleOpen if that is
    below the highest fence this group has seen, of any bucket: then the meta group must be read again."""

    bucket: str
    meta_index: int
    now_ms: int


class BucketFence(Struct, frozen=True, array_like=True, tag=15, gc=False, forbid_unknown_fields=True):
    """The bucket is being deleted since `meta_index`: no stream is created in it any more, until a newer BucketOpen. Answered by BucketFenced."""

    bucket: str
    meta_index: int
    now_ms: int


Command = (
    Create
    | Append
    | Delete
    | Touch
    | Expire
    | PublishSnapshot
    | Trim
    | Pin
    | CreateFork
    | Unpin
    | ResolveFork
    | SettlePin
    | AckOutbox
    | BucketOpen
    | BucketFence
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Command])


def encode_commands(commands: list[Command]) -> bytes:
    return _encoder.encode(commands)


def commands_payload(encoded: list[bytes]) -> bytes:
    """The payload of commands that were encoded one by one: an array header and the commands behind it."""
    count = len(encoded)
    if count < 16:
        header = bytes([0x90 | count])
    else:
        header = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return header + b"".join(encoded)


def decode_commands(payload: bytes) -> list[Command]:
    """Raises MalformedCommands, a ValueError that names the place, for anything but exactly a list of known commands."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:  # ValidationError is one
        raise MalformedCommands(f"log entry payload of {len(payload)} bytes is not a list of stream commands: {error}") from error
    except UnicodeDecodeError as error:
        raise MalformedCommands(f"log entry payload of {len(payload)} bytes holds text that is not UTF-8: {error}") from error
