"""One log entry as bytes, the same in memory, in a peer frame and in the WAL: `term u64 | length u32 | version u8 | payload`.

A block is entries laid end to end, so joining and splitting never copies a field. `version` is the command version that every entry
starts with: it says how to apply the payload, for ever. Unknown versions are the machine's to refuse (the group is fenced), not ours."""

import struct

HEADER = struct.Struct("<QIB")

NOOP = 0
"""First entry of a leader's term: nothing to apply."""
CONFIG = 1
"""A Raft configuration (membership.py). Takes effect when appended, not when committed."""
COMMANDS_V1 = 2
"""A batch of stream commands, first spelling (stream/commands.py)."""


def encode(term: int, version: int, payload: bytes) -> bytes:
    return HEADER.pack(term, len(payload), version) + payload


def term_of(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "little")


def version_of(entry: bytes) -> int:
    return entry[12]


def payload_of(entry: bytes) -> bytes:
    return entry[HEADER.size :]


def split(block: bytes) -> list[bytes]:
    """The entries of a block, in order. Raises ValueError if the block does not end where its last entry does."""
    end = len(block)
    if end >= HEADER.size and HEADER.size + HEADER.unpack_from(block, 0)[1] == end:
        return [block]  # the common case: one entry per group and turn, shared and not copied
    entries = []
    start = 0
    while start < end:
        if start + HEADER.size > end:
            raise ValueError(f"entry header cut off at byte {start} of {end}")
        stop = start + HEADER.size + HEADER.unpack_from(block, start)[1]
        if stop > end:
            raise ValueError(f"entry at byte {start} ends at {stop}, past the block's {end}")
        entries.append(block[start:stop])
        start = stop
    return entries
