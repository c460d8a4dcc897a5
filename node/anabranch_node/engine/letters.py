"""Requests that travel to another node and their answers, as they lie in a peer frame beside Raft's messages.

Before us: engine/forward.py decided where to ask. After us: envelope.py gives them bytes. Bodies are opaque here: only the two ends decode them."""

from typing import NamedTuple


class Forward(NamedTuple):
    """`request` is the asking node's own number; `wait_ms` > 0: a read that finds nothing new may wait that long for it."""

    request: int
    write: bool
    wait_ms: int
    body: bytes


class ForwardAnswer(NamedTuple):
    request: int
    body: bytes
