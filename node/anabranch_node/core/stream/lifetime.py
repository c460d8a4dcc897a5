"""What most streams do not have, in one object that they do not have either: window, expiry, close, Stream-Seq, retention, a published snapshot,
what a fork stands on and what is kept for forks. Held by stream.py.

Time is the group's clock, handed in. A sliding window is extended by replicated touches only, and a touch younger than the grace g is not repeated
(a busy reader would otherwise write with every read), so the end is touch + window + g: never earlier than the window after the last use.
Not here: who proposes Touch and Expire (engine/), what they do (lifecycle.py)."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from anabranch_node.core.stream.commands import Producer, Range

GRACE_MS_MAX = 60_000


class Fork(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Where a fork comes from. `anchor` and `sub_offset` as its create asked for them, `offset` the fork point that they led to."""

    uuid: str
    source: str
    source_incarnation: int
    anchor: int | None
    sub_offset: int
    offset: int
    ranges: list[Range]
    last_append_ms: int = 0
    """Of what is inherited: times of the fork's own messages do not go back behind it."""


class PinState(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """[earliest, offset) is kept for that fork. Pending: whether it was ever made is not known yet."""

    fork: str
    earliest: int
    offset: int
    pending: bool
    at_ms: int
    last_append_ms: int = 0


class Published(Struct, frozen=True, gc=False):
    """The client's own fold of everything before `offset`."""

    offset: int
    content_type: str
    data: bytes


class RareFields(Struct, gc=False):
    """Changed in place, so a copied stream copies it. At most one of `ttl_s` and `expires_at_ms` is set."""

    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_at: str = ""
    """As the client spelt it."""
    touched_at_ms: int = 0
    """The last use; kept only with a window."""
    closed: bool = False
    closer: Producer | None = None
    """The tuple of the append that closed: its retry is a duplicate, while every other append is refused."""
    seq: str | None = None
    """The last `Stream-Seq`."""
    retention_bytes: int | None = None
    retention_age_s: int | None = None
    gone: bool = False
    """Soft-deleted: kept for its forks only."""
    fork: Fork | None = None
    pins: dict[str, PinState] | None = None
    """By the fork's uuid. Replaced, never changed, so that copies share it."""
    published: Published | None = None
    last_append_ms: int = 0
    """Append time of the last message, if no message is held here: trimmed, or inherited by a fork."""

    def touch(self, now_ms: int) -> None:
        if self.ttl_s is not None:
            self.touched_at_ms = now_ms

    @property
    def due_ms(self) -> int | None:
        """From when on the stream does not exist, even if Expire has not come yet. None: never."""
        if self.gone:
            return None
        if self.ttl_s is None:
            return self.expires_at_ms
        return self.touched_at_ms + self.ttl_s * 1000 + grace_ms(self.ttl_s)

    def is_due(self, now_ms: int) -> bool:
        due_ms = self.due_ms
        return due_ms is not None and now_ms >= due_ms

    def is_touch_due(self, now_ms: int) -> bool:
        """A read by a node whose own clock says `now_ms` should propose a Touch. A clock behind the touch cannot tell, so it does as well."""
        return self.ttl_s is not None and not 0 <= now_ms - self.touched_at_ms < grace_ms(self.ttl_s)

    def copy(self) -> RareFields:
        return msgspec.structs.replace(self)


def grace_ms(ttl_s: int) -> int:
    return min(ttl_s * 1000 // 8, GRACE_MS_MAX)
