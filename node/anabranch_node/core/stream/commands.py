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
    """`stream` is "bucket/name", here and everywhere in the core."""

    stream: str
    content_type: str
    now_ms: int


class Append(Struct, frozen=True, array_like=True, tag=2, gc=False, forbid_unknown_fields=True):
    """One message. Its time is the group's clock after this command: never earlier than any before it, whatever `now_ms` says."""

    stream: str
    body: bytes
    now_ms: int
    producer: Producer | None = None


Command = Create | Append

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Create | Append])


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
