"""One request between its arrival and its answer: what was asked, where, how often. service.py moves it on; live.py keeps those that wait.

Bounded: by the client plane's connections, the peers' windows and `waiters_max`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from msgspec import Struct

from anabranch_node.core.stream.results import Inherited, MessageSlice, ReadSlice, SnapshotBlob
from anabranch_node.service.bootstrap import Bootstrap
from anabranch_node.web.batch import Frame
from anabranch_node.web.request import Request


class Stage(Enum):
    ASKED = "asked"  # a group works on it, here or on another node
    OPENING = "opening"  # a create whose bucket is not open in its group: the meta group is asked (buckets.py)
    PARKED = "parked"  # no leader known: asked again at the next tick
    TOUCHING = "touching"  # the read is served, its stream's sliding window is being reset
    WAITING = "waiting"  # a long-poll at the tail
    LAST_LOOK = "last look"  # a long-poll timed out: one more ReadIndex before it says "nothing"
    STREAMING = "streaming"  # an SSE response goes on
    PACED = "paced"  # a bootstrap whose client has not taken the last piece yet


class Served(NamedTuple):
    """Asked by another node: the answer goes back there."""

    node: int
    incarnation: int
    request: int


class Life(Struct, gc=False):
    token: int
    group: int
    write: bool
    payload: Any
    """A command or a query (core/stream)."""
    deadline_ms: int
    request: Request | None = None
    served: Served | None = None
    then: Callable[[Any], None] | None = None
    """Asked by the service itself: who hears the answer."""
    makes_bucket: bool = False
    """A create that also makes the bucket it names."""
    opens: int = 0
    """How often its bucket was not open in its group."""
    wait_ms: int = 0
    stage: Stage = Stage.ASKED
    tries: int = 0
    hint: tuple[int, int] | None = None
    """(node, incarnation) that a refusal named as the leader's."""
    sent: bool = False
    """A write that may be in a log somewhere: from here on silence means unknown."""
    slice: ReadSlice | MessageSlice | Inherited | SnapshotBlob | None = None
    last_look: bool = False
    """A long-poll whose time is over: wherever its last look is answered, it does not wait again."""
    remote: bool = False
    """A live read of a group that has no replica here."""
    touch: int = 0
    """The token of the Touch that it waits for: one of its own, so that a late answer is never taken for this read's."""
    frames: list[Frame] | None = None
    """Of an append-batch."""
    bootstrap: Bootstrap | None = None
    poll_until_ms: int = 0
    """Such a long-poll: how long it goes on asking the other node, a few seconds at a time."""
