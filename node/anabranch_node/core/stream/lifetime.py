"""What most streams do not have, in one object that they do not have either: window, expiry, close, Stream-Seq. Held by stream.py.

Time is the group's clock, handed in. A sliding window is extended by replicated touches only, and a touch younger than the grace g is not repeated
(a busy reader would otherwise write with every read), so the end is touch + window + g: never earlier than the window after the last use.
Not here: who proposes Touch and Expire (engine/), what they do (lifecycle.py)."""

from __future__ import annotations

from msgspec import Struct

from anabranch_node.core.stream.commands import Producer

GRACE_MS_MAX = 60_000


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

    def touch(self, now_ms: int) -> None:
        if self.ttl_s is not None:
            self.touched_at_ms = now_ms

    @property
    def due_ms(self) -> int | None:
        """From when on the stream does not exist, even if Expire has not come yet. None: never."""
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
        return RareFields(self.ttl_s, self.expires_at_ms, self.expires_at, self.touched_at_ms, self.closed, self.closer, self.seq)


def grace_ms(ttl_s: int) -> int:
    return min(ttl_s * 1000 // 8, GRACE_MS_MAX)
