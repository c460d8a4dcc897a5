"""What the leader believes of one follower. leader.py asks it what may be sent and tells it what was answered.

PROBE: one append at a time until the logs are known to meet. REPLICATE: optimistic, a window of appends in flight, bounded in count and bytes.
SNAPSHOT: the follower needs entries that are gone; the host sends it a file. The window is what keeps a slow or dead follower from pinning memory,
and duplicated packets from multiplying: an answer frees room, it never earns a packet of its own."""

from collections import deque
from enum import Enum


class State(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    __slots__ = (
        "active",
        "asked_tick",
        "in_flight",
        "in_flight_bytes",
        "loading",
        "match",
        "next",
        "probe_sent",
        "read_round",
        "sent_commit",
        "snapshot_index",
        "state",
    )

    def __init__(self, next_index: int) -> None:
        self.state = State.PROBE
        self.match = 0
        self.next = next_index
        self.in_flight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each append not answered yet
        self.in_flight_bytes = 0
        self.probe_sent = False
        self.asked_tick = 0  # when we last asked, without news to send, what this follower has
        self.loading = False  # the host is reading this follower's next entries back from the WAL
        self.snapshot_index = 0
        self.sent_commit = 0
        self.read_round = 0
        self.active = True  # heard from since the last check-quorum

    def become_probe(self) -> None:
        # After a snapshot the follower may already hold it, although its answer was lost.
        self.next = max(self.match + 1, self.snapshot_index + 1 if self.state is State.SNAPSHOT else 1)
        self._leave(State.PROBE)

    def become_replicate(self) -> None:
        self.next = self.match + 1
        self._leave(State.REPLICATE)

    def become_snapshot(self, index: int) -> None:
        self._leave(State.SNAPSHOT)
        self.snapshot_index = index

    def _leave(self, state: State) -> None:
        self.state = state
        self.probe_sent = self.loading = False
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.snapshot_index = 0

    def can_send(self, count_max: int, bytes_max: int) -> bool:
        if self.loading or self.state is State.SNAPSHOT:
            return False
        if self.state is State.PROBE:
            return not self.probe_sent
        return len(self.in_flight) < count_max and self.in_flight_bytes < bytes_max

    def sent(self, last_index: int, size: int) -> None:
        """An append with entries through last_index left; of size 0, it only asks whether the logs meet there."""
        if self.state is State.REPLICATE and size:
            self.next = last_index + 1
            self.in_flight.append((last_index, size))
            self.in_flight_bytes += size
        elif self.state is State.PROBE:
            self.probe_sent = True

    def accepted(self, index: int) -> bool:
        """The follower has everything through `index`, durably. False: we knew that (late or duplicated answer)."""
        while self.in_flight and self.in_flight[0][0] <= index:
            self.in_flight_bytes -= self.in_flight.popleft()[1]
        self.next = max(self.next, index + 1)
        if index <= self.match:
            return False
        self.match = index
        self.probe_sent = False
        return True

    def refused(self, prev_index: int, next_index: int) -> bool:
        """An append after prev_index did not fit. False: an old answer, to be ignored."""
        if self.state is State.REPLICATE:
            if prev_index <= self.match:
                return False
            self.become_probe()
        elif self.state is State.SNAPSHOT or self.next - 1 != prev_index:
            return False
        self.next = max(min(prev_index, next_index), self.match + 1)
        self.probe_sent = False
        return True
