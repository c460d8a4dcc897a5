"""The network between simulated nodes: directed links that lose, duplicate, delay, reorder, clog and are cut. world.py owns the time.

A frame is what production would hand to a peer link. Losing one is what a broken connection does; the receiver checks everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_node.core.effects import FrameReceived
from anabranch_node.service.effects import FramesDropped
from tests.sim.chance import between

if TYPE_CHECKING:
    from tests.sim.world import World


class SimNet:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._swarm = world.swarm
        self.calm = False
        """After the chaos: nothing is lost, duplicated or slow any more."""
        self.cuts: dict[tuple[int, int], int] = {}  # (from, to) -> how many faults cut this direction now
        self.clogged_until: dict[tuple[int, int], int] = {}
        self._broken: set[tuple[int, int]] = set()
        self.lost = 0
        self.duplicated = 0
        self.delivered = 0

    def cut(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self.cuts[pair] = self.cuts.get(pair, 0) + 1

    def heal(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self.cuts[pair] = max(0, self.cuts.get(pair, 0) - 1)

    def heal_all(self) -> None:
        self.cuts.clear()
        self.clogged_until.clear()
        self.calm = True

    def send(self, src: int, dst: int, data: bytes) -> None:
        rng, swarm, world = self._rng, self._swarm, self._world
        if self.cuts.get((src, dst)) or (not self.calm and rng.random() < swarm.loss):
            self.lost += 1
            if swarm.http:
                self._tell_broken(src, dst)
            return
        copies = 1
        if not self.calm and swarm.duplication and rng.random() < swarm.duplication:
            copies = 2
            self.duplicated += 1
        for _ in range(copies):
            delay = between(rng, swarm.net_delay_us)
            if not self.calm and swarm.slow_packet and rng.random() < swarm.slow_packet:
                delay *= 50
            at = max(world.now_us + delay, self.clogged_until.get((src, dst), 0))
            world.at(at, self._deliver, src, dst, data)

    def _tell_broken(self, src: int, dst: int) -> None:
        """A link that loses a frame is a connection that broke: sooner or later both ends notice."""
        for here, there in ((src, dst), (dst, src)):
            if (here, there) not in self._broken:
                self._broken.add((here, there))
                self._world.after(between(self._rng, (1_000, 2_000_000)), self._notice, here, there)

    def _notice(self, here: int, there: int) -> None:
        self._broken.discard((here, there))
        node = self._world.nodes[here]
        if node.up:
            node.push(FramesDropped(there))

    def _deliver(self, src: int, dst: int, data: bytes) -> None:
        node = self._world.nodes.get(dst)
        if node is not None and node.up:
            self.delivered += 1
            node.push(FrameReceived(src, data))
