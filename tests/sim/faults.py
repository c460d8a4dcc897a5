"""Faults: what may go wrong, when, and how much of it at once. world.py calls next() again and again during the chaos, then heal_all().

Crashes, cuts, pauses and power losses may hit anyone, all nodes together too: nothing durable is lost by them. Damage (a lost disk, rot) is kept
within what the protocol promises to survive: never a majority of the voters of any configuration that a group still knows; except in declared
quorum-loss runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from anabranch_node.core import effects as fx
from tests.sim.sim_disk import Rot
from tests.sim.swarm import SECOND

if TYPE_CHECKING:
    from tests.sim.sim_node import SimNode
    from tests.sim.world import World


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.count: Counter[str] = Counter()
        self._do = {
            "kill": self._kill,
            "power loss": self._power_loss,
            "power loss of all": self._power_loss_of_all,
            "crash in a file operation": self._burn_fuse,
            "crash after a vote": lambda node: False,  # armed by voted()
            "pause": self._pause,
            "isolate": self._isolate,
            "cut off a leader": self._cut_off_leader,
            "one-way cut": self._one_way,
            "split": self._split,
            "flap": self._flap,
            "clog": self._clog,
            "fsync error": self._fsync_error,
            "fsync stall": self._fsync_stall,
            "read error": self._read_error,
            "unreadable sector": self._unreadable,
            "bit rot": self._rot,
            "disk full": self._disk_full,
            "disk lost": self._disk_lost,
            "clock jump": self._clock_jump,
            "transfer": self._transfer,
            "move replica": self._move,
            "snapshot": self._snapshot,
        }

    def next(self) -> None:
        world = self._world
        if world.chaos_over:
            return
        name = self._rng.choice(world.swarm.faults)
        node = self._rng.choice(list(world.nodes.values()))
        if self._do[name](node):
            self.count[name] += 1
            world.note(node.number, f"FAULT {name}")
        world.after(self._rng.randint(1, 2 * world.swarm.fault_gap_us), self.next)

    def heal_all(self) -> None:
        """The world is kind again. A damaged disk is looked at by a restart, as an operator would, so that nothing sleeps in it."""
        world = self._world
        world.net.heal_all()
        for node in world.nodes.values():
            self._free_disk(node)
            node.fs.fsync_errors = node.fs.read_errors = 0
            node.stall_until_us = 0
            if node.up and node.damaged:
                self.crash(node, power=False)
            elif node.up:
                node.resume(node.boots)
            else:
                world.after(SECOND // 10, node.start)

    # --- crashes -----------------------------------------------------------------------------------------------------------------

    def crash(self, node: SimNode, power: bool) -> None:
        world = self._world
        if not node.up:
            return
        node.die(power)
        world.note(node.number, "loses power" if power else "is killed")
        for other in world.nodes.values():
            if other.up and self._rng.random() < 0.7:
                world.after(self._rng.randint(100, 50_000), self._tell_lost, other, other.boots, node.number)
        down_us = SECOND // 10 if world.chaos_over else self._rng.choice((SECOND // 20, SECOND // 2, 2 * SECOND, 5 * SECOND))
        world.after(down_us, node.start)

    def _tell_lost(self, other: SimNode, life: int, lost: int) -> None:
        if other.up and other.boots == life:
            other.push(fx.PeerLost(lost))

    def _kill(self, node: SimNode) -> bool:
        if not node.up:
            return False
        self.crash(node, power=False)
        return True

    def _power_loss(self, node: SimNode) -> bool:
        if not node.up:
            return False
        self.crash(node, power=True)
        return True

    def _power_loss_of_all(self, _: SimNode) -> bool:
        if self._rng.random() < 0.5:
            return False
        for node in self._world.nodes.values():
            self.crash(node, power=True)
        return True

    def _burn_fuse(self, node: SimNode) -> bool:
        """The process dies inside one of its next file operations."""
        if not node.up:
            return False
        node.fs.crash_after_ops(self._rng.choice((1, 2, 3, 5, 10, 30)), self._rng.choice((0.0, 0.5, 1.0)))
        return True

    def voted(self, node: SimNode) -> None:
        """It is about to grant a vote: sometimes it dies just before or just after the answer left."""
        if "crash after a vote" in self._world.swarm.faults and not self._world.chaos_over and self._rng.random() < 0.1:
            sync_us = self._world.swarm.sync_us[1]
            self._world.after(self._rng.randint(0, 2 * sync_us), self._die_after_vote, node, node.boots)

    def _die_after_vote(self, node: SimNode, life: int) -> None:
        if node.up and node.boots == life:
            self.count["crash after a vote"] += 1
            self._world.note(node.number, "FAULT crash after a vote")
            self.crash(node, power=self._rng.random() < 0.7)

    def _pause(self, node: SimNode) -> bool:
        if not node.up or node.paused:
            return False
        node.pause()
        self._world.after(self._rng.choice((SECOND // 10, SECOND, 4 * SECOND)), node.resume, node.boots)
        return True

    # --- the network -------------------------------------------------------------------------------------------------------------

    def _cut_for(self, pairs: list[tuple[int, int]], duration_us: int) -> bool:
        if not pairs:
            return False
        self._world.net.cut(pairs)
        self._world.after(duration_us, self._world.net.heal, pairs)
        return True

    def _duration(self) -> int:
        return self._rng.choice((SECOND // 5, SECOND, 3 * SECOND, 6 * SECOND))

    def _others(self, node: SimNode) -> list[int]:
        return [number for number in self._world.nodes if number != node.number]

    def _isolate(self, node: SimNode) -> bool:
        pairs = [pair for other in self._others(node) for pair in ((node.number, other), (other, node.number))]
        return self._cut_for(pairs, self._duration())

    def _cut_off_leader(self, _: SimNode) -> bool:
        """From its peers, not from its clients: it believes that it leads for a while after the others have chosen another."""
        leader = self._world.leader(self._rng.choice(self._world.groups))
        return leader is not None and self._isolate(self._world.nodes[self._world.node_of[leader.id]])

    def _one_way(self, node: SimNode) -> bool:
        others = self._others(node)
        if self._rng.random() < 0.5 and others:
            others = [self._rng.choice(others)]
        inward = self._rng.random() < 0.5
        return self._cut_for([(other, node.number) if inward else (node.number, other) for other in others], self._duration())

    def _split(self, _: SimNode) -> bool:
        numbers = list(self._world.nodes)
        self._rng.shuffle(numbers)
        at = self._rng.randint(1, max(1, len(numbers) - 1))
        pairs = [pair for left in numbers[:at] for right in numbers[at:] for pair in ((left, right), (right, left))]
        return self._cut_for(pairs, self._duration())

    def _flap(self, node: SimNode) -> bool:
        pairs = [pair for other in self._others(node) for pair in ((node.number, other), (other, node.number))]
        for number in range(self._rng.randint(2, 6)):
            self._world.after(number * SECOND // 2 + 1, self._cut_for, pairs, self._rng.randint(50_000, 450_000))
        return bool(pairs)

    def _clog(self, node: SimNode) -> bool:
        """Nothing is lost, but everything to or from this node arrives late and at once."""
        until = self._world.now_us + self._rng.choice((SECOND // 2, 2 * SECOND, 5 * SECOND))
        for other in self._others(node):
            self._world.net.clogged_until[node.number, other] = until
            if self._rng.random() < 0.5:
                self._world.net.clogged_until[other, node.number] = until
        return True

    # --- disks -------------------------------------------------------------------------------------------------------------------

    def _fsync_error(self, node: SimNode) -> bool:
        if not node.up:
            return False
        node.fs.fsync_errors = 1
        return True

    def _fsync_stall(self, node: SimNode) -> bool:
        node.stall_until_us = self._world.now_us + self._rng.choice((SECOND // 5, SECOND, 3 * SECOND))
        return True

    def _rot(self, node: SimNode) -> bool:
        """Only in bytes that are known to be synced: rot in the last unnoted batch together with a crash cannot be told from a torn write
        (docs/guarantees)."""
        if not node.up or not self._may_damage(node):
            return False
        newest = f"{node.host._wal.segments[-1]:016d}.seg"
        known = node.known_synced
        end = known.offset if known.segment == node.host._wal.segments[-1] else 0
        rot = node.fs.rot(
            self._rng,
            lambda path: "spare" not in path and not path.endswith((".tmp", ".writing", ".incoming")),
            lambda path: end if path.endswith(newest) else 1 << 40,
        )
        if rot is None:
            return False
        self._damage_file(node, rot)
        return True

    def _read_error(self, node: SimNode) -> bool:
        node.fs.read_errors = self._rng.randint(1, 3)
        return True

    def _unreadable(self, node: SimNode) -> bool:
        if not node.up or not self._may_damage(node):
            return False
        sector = node.fs.make_unreadable(self._rng, lambda path: path.endswith((".seg", ".snap")))
        if sector is None:
            return False
        self._damage_file(node, sector)
        return True

    def _disk_lost(self, node: SimNode) -> bool:
        if not self._may_damage(node):
            return False
        if node.up:
            node.die(power=True)
        self._damage(node, "disk lost")
        node.fresh_disk()
        self._world.after(self._rng.choice((SECOND // 10, SECOND)), node.start)
        return True

    def _damage_file(self, node: SimNode, rot: Rot) -> None:
        node.damaged_files.append(rot.path.rpartition("/")[2])
        self._damage(node, str(rot))

    def _damage(self, node: SimNode, what: str) -> None:
        node.damaged = what
        self._world.note(node.number, f"damage: {what}")
        self._world.lost_replicas.update(replica for replica, at in self._world.node_of.items() if at == node.number)

    def _may_damage(self, node: SimNode) -> bool:
        """Would every configuration that any replica still knows keep a majority of sound voters?"""
        world = self._world
        if world.swarm.quorum_loss:
            return True
        lost = world.lost_replicas | {replica for replica, at in world.node_of.items() if at == node.number}
        for other in world.nodes.values():
            # Of a node that is down: all that it may find again on its disk.
            for config in [config for held in other.host.groups.values() for _, config in held.raft.configs]:
                for voters in (config.voters, config.old_voters):
                    if voters and sum(voter in lost for voter in voters) > (len(voters) - 1) // 2:
                        return False
        return True

    def _disk_full(self, node: SimNode) -> bool:
        if not node.up or node.full:
            return False
        node.full = True
        node.fs.capacity_bytes = node.fs.used_bytes + self._rng.choice((0, 10_000, 100_000))
        self._world.after(self._rng.choice((SECOND, 4 * SECOND)), self._free_disk, node)
        return True

    def _free_disk(self, node: SimNode) -> None:
        node.full = False
        node.fs.capacity_bytes = 1 << 40

    # --- time, leadership, places ------------------------------------------------------------------------------------------------

    def _clock_jump(self, node: SimNode) -> bool:
        node.skew_us += self._rng.choice((-3_600, -5, 5, 3_600)) * SECOND
        return True

    def _transfer(self, _: SimNode) -> bool:
        world = self._world
        group = self._rng.choice(world.groups)
        leader = world.leader(group)
        if leader is None:
            return False
        target = self._rng.choice(leader.config.voters)
        world.ask(world.nodes[world.node_of[leader.id]], fx.TransferLeadership(world.token(), group, target), None)
        return True

    def _move(self, _: SimNode) -> bool:
        """Another node shall host the group instead of one of its own."""
        world = self._world
        group = self._rng.choice(world.groups)
        outside = [number for number in world.nodes if number not in world.placement[group]]
        if not outside:
            return False
        place = list(world.placement[group])
        place[self._rng.randrange(len(place))] = self._rng.choice(outside)
        world.placement[group] = sorted(place)
        return True

    def _snapshot(self, node: SimNode) -> bool:
        if not node.up:
            return False
        for group in self._world.groups:
            node.push(fx.TakeSnapshot(group))
        return True
