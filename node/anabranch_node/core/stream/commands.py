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

    At most one of `ttl_s` (sliding window) and `expires_at_ms` (absolute) is given. `expires_at` is that time as the client spelt it."""

    stream: str
    content_type: str
    now_ms: int
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_at: str = ""
    closed: bool = False
    body: bytes = b""
    lengths: bytes = b""


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


Command = Create | Append | Delete | Touch | Expire

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Create | Append | Delete | Touch | Expire])


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
