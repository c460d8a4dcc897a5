"""What the other nodes' clocks say, so that one wrong clock cannot move a group's time (DESIGN 7). Fed by every frame, asked by every stamp.

A difference is measured when a frame arrives, so it is late by the frame's way: milliseconds, where the rule allows two seconds.
Not here: safety. It never depends on these; only expiry and append times do."""

from collections.abc import Iterable

AHEAD_MAX_MS = 2_000
OURS = 0
"""In place of a node's id: this node's own clock."""


class Clocks:
    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead: dict[int, int] = {}  # node -> by how much its clock was ahead of ours when we last heard it

    def heard(self, node: int, its_now_ms: int, our_now_ms: int) -> None:
        self._ahead[node] = its_now_ms - our_now_ms

    def strays(self, node: int, nodes: Iterable[int]) -> bool:
        """Is the clock of `node` (or OURS) more than 2 s off the median of ours and those of `nodes`, the other voters? With an even number of
        clocks it must be off both in the middle: of two, nobody knows which one is wrong."""
        its = 0 if node == OURS else self._ahead.get(node)
        if its is None:
            return False
        ahead = sorted([0, *[self._ahead[other] for other in nodes if other in self._ahead]])
        return its - ahead[len(ahead) // 2] > AHEAD_MAX_MS or ahead[(len(ahead) - 1) // 2] - its > AHEAD_MAX_MS

    def bounded(self, now_ms: int, nodes: Iterable[int]) -> int:
        """Our clock, but at most 2 s ahead of the median of ours and those of `nodes`, the other voters. Unheard ones do not count."""
        ahead = sorted([0, *[self._ahead[node] for node in nodes if node in self._ahead]])
        return min(now_ms, now_ms + ahead[(len(ahead) - 1) // 2] + AHEAD_MAX_MS)
