"""Which streams may be due next: a heap over the streams that can expire, corrected lazily. Asked by the leader's engine through machine.due().

Derived state: rebuilt at restore, not in the snapshot and not in the digest, and free to differ between replicas. It proposes, and apply decides
(lifecycle.expire). One entry per stream, whatever happens to it: a touch moves the true due later, which is noticed when the old one comes up."""

from heapq import heapify, heappop, heappush

from anabranch_node.core.stream.commands import Expire
from anabranch_node.core.stream.stream import Stream

EXPIRES_PER_CALL_MAX = 1000
CHECKS_PER_CALL_MAX = 4000
"""Bounds what one call costs (about 4 ms) when many windows that were touched meanwhile come up at once."""
REPEAT_MS = 1000
"""An Expire that was asked for is on its way through the log; if it gets lost, it is asked for again after this."""
_DEAD_MIN = 64


class ExpiryQueue:
    __slots__ = ("_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str, int]] = []  # (not due before, stream, incarnation)
        self._dead = 0  # entries whose stream was removed, at least

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, name: str, incarnation: int) -> None:
        heappush(self._heap, (due_ms, name, incarnation))

    def forget(self, streams: dict[str, Stream]) -> None:
        """A stream that could expire is gone. Its entry goes when it comes up, or when half of all entries are such: a window may last for years."""
        self._dead += 1
        if self._dead > _DEAD_MIN and self._dead * 2 > len(self._heap):
            self._heap = [item for item in self._heap if (found := streams.get(item[1])) is not None and found.incarnation == item[2]]
            heapify(self._heap)
            self._dead = 0

    def due(self, streams: dict[str, Stream], now_ms: int) -> list[Expire]:
        heap = self._heap
        expires: list[Expire] = []
        checks = 0
        while heap and heap[0][0] <= now_ms and checks < CHECKS_PER_CALL_MAX and len(expires) < EXPIRES_PER_CALL_MAX:
            checks += 1
            _, name, incarnation = heappop(heap)
            stream = streams.get(name)
            due_ms = None if stream is None or stream.incarnation != incarnation or stream.rare is None else stream.rare.due_ms
            if due_ms is None:
                self._dead = max(0, self._dead - 1)
            elif due_ms > now_ms:
                heappush(heap, (due_ms, name, incarnation))
            else:
                heappush(heap, (now_ms + REPEAT_MS, name, incarnation))
                expires.append(Expire(name, incarnation, 0))
        return expires
