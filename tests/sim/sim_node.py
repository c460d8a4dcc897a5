"""One node in the simulator: the production host over the production disk code over a simulated file system. world.py gives it time, faults and
peers.

Up: events gather in an inbox until the node's next turn. The log's disk works like the fsync thread: it takes everything queued, writes all of it,
then one sync ends later. Down: only the file system remains. A new disk is a new incarnation; nothing of the old identity is taken over."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from anabranch_node.core import effects as fx
from anabranch_node.core.cluster.machine import MetaMachine
from anabranch_node.core.raft.records import EntriesAppended, HardState, LogTruncated, SnapshotMark
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.drivers.snapshot_disk import SnapshotDisk
from anabranch_node.drivers.wal_disk import WalDisk, WalDiskOptions
from anabranch_node.engine.group import Group
from anabranch_node.engine.host import Host
from anabranch_node.engine.meta_codec import META
from anabranch_node.service import effects as sx
from anabranch_node.service.service import Service
from anabranch_node.wal.batch import Position
from anabranch_node.wal.recovery import recover
from anabranch_node.wal.segment import encode_sync_mark
from anabranch_node.wal.wal import Wal
from anabranch_proto.formats import FormatError
from anabranch_proto.ids import NodeIdentity
from tests.sim import resources
from tests.sim.chance import between
from tests.sim.sim_disk import SimCrash, SimFs

if TYPE_CHECKING:
    from tests.sim.world import World

CLUSTER_ID = "sim"
_CLIENT_EFFECTS = (sx.Respond, sx.Begin, sx.Piece, sx.Abort, sx.Broadcast, sx.End)
_WAL_EFFECTS = (fx.SegmentCreate, fx.SegmentDelete, fx.WalWrite, fx.SyncMark, fx.WalRead)
_SNAPSHOT_EFFECTS = (
    fx.SnapshotOpen,
    fx.SnapshotAppend,
    fx.SnapshotFinish,
    fx.SnapshotRead,
    fx.SnapshotReceive,
    fx.SnapshotLoad,
    fx.SnapshotsDelete,
)


class SimNode:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.rng = Random(world.swarm.seed * 1_000 + number)
        self.skew_us = world.swarm.skew_us[(number - 1) % len(world.swarm.skew_us)]
        self.tick_us = int(world.swarm.tick_us * world.swarm.tick_rates[number - 1])
        self.boots = 0
        self.up = False
        self.paused = False
        self.pauses = 0  # so far
        self.full = False
        self.damaged = ""  # what was done to this disk, "" if nothing: then no group may ever be fenced here
        self.disk_busy = False
        self.stall_until_us = 0
        self.fresh_disk()

    def fresh_disk(self) -> None:
        """An empty data directory: another incarnation of the node, whatever stood there before."""
        self.world.incarnations += 1
        self.identity = NodeIdentity(CLUSTER_ID, self.number, self.world.incarnations)
        self.fs = SimFs()
        self.damaged = ""
        self.known_synced = Position(0, 0)
        self.damaged_files: list[str] = []  # their names, without the folder: a fence must name one

    # --- life and death ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read what the disk has and go on from there, as main.py will."""
        if self.up:
            return
        swarm = self.world.swarm
        self.boots += 1
        try:
            self.wal_disk = WalDisk(
                self.fs,
                "data",
                WalDiskOptions(segment_bytes=swarm.wal.segment_bytes),
                lambda segment, offset: encode_sync_mark(self.identity, Position(segment, offset)),
            )
            files = self.wal_disk.open()
            recovered = recover(self.identity, files.segments, files.sync_mark or None, swarm.wal)
            self.snapshot_disk = SnapshotDisk(self.fs, "data", CLUSTER_ID)
            snapshot_files = self.snapshot_disk.scan()
            snapshots: dict[tuple[int, int], fx.SnapshotLoaded | fx.SnapshotFailed] = {}
            for found in recovered.groups.values():
                if found.snapshot.index and not found.fenced:
                    key = fx.SnapshotKey(found.group, found.replica, found.snapshot.index, found.snapshot.term)
                    loaded = self.snapshot_disk.perform([fx.SnapshotLoad(key)])[0]
                    assert isinstance(loaded, fx.SnapshotLoaded | fx.SnapshotFailed), loaded
                    snapshots[found.group, found.replica] = loaded
                    if isinstance(loaded, fx.SnapshotFailed) and _names(loaded.reason, self.fs.injected_reads) and not self._has_unreadable():
                        raise OSError(loaded.reason)  # it may be there at the next try: nobody is fenced for that
        except SimCrash:
            self.die(power=self.rng.random() < 0.5)
            self.world.at(self.world.now_us + 500_000, self.start)
            return
        except FormatError as error:  # rot in a magic makes a foreign file of ours: refused by name, and the operator gives the node a new disk
            self.world.note(self.number, f"joins as a new incarnation: {error}")
            if not self.damaged:
                raise self.world.violation(f"node {self.number} found damage that nobody did: {error}") from error
            self.world.lose_disk(self)
            return
        except OSError as error:
            if not self.may_stop(str(error)) and not _names(str(error), self.fs.injected_reads):
                raise
            if self._has_unreadable() and _names(str(error), self.fs.injected_reads):
                self.world.note(self.number, f"joins as a new incarnation: {error}")
                self.world.lose_disk(self)
                return
            self.fs.injected.clear()
            self.fs.injected_reads.clear()
            self.world.note(self.number, f"cannot start: {error}")
            self.world.at(self.world.now_us + 500_000, self.start)
            return
        if recovered.end < self.known_synced:
            raise self.world.violation(f"node {self.number} cut its log at {recovered.end}, though its disk knew it synced up to {self.known_synced}")
        if recovered.torn is not None:
            self.world.note(self.number, f"cut a torn tail: {recovered.torn}")
        self.up, self.paused = True, False
        self.inbox: list[fx.Event] = []
        self.turn_due = self.turn_again = False
        self.wal_queue: deque[fx.Effect] = deque()
        self.snapshot_queue: deque[fx.Effect] = deque()
        self.disk_busy = self.snapshots_busy = False
        self.noting: deque[tuple[int, Position]] = deque()
        self.known_synced = Position(0, 0)
        """The highest sync that a durable batch header tells of: rot below it is never taken for a torn write."""
        self.persisting: list[tuple[int, int, list[object]]] = []
        self.unsynced: deque[tuple[int, list[tuple[int, int, list[object]]]]] = deque()
        self.durable: dict[int, tuple[int, int, list[int]]] = {  # group -> (replica, first index, terms): what the disk is known to hold
            found.group: (found.replica, found.snapshot.first_index, [int.from_bytes(entry[:8], "little") for entry in found.entries])
            for found in recovered.groups.values()
            if not found.fenced
        }
        wal = Wal(self.identity, swarm.wal, recovered)
        self.host = Host(self.identity, swarm.host, StreamMachine, self.rng, self.boots, wal, MetaMachine)
        self.host.audit = self._audit
        self.service = Service(self.host, swarm.service, META)
        self.service.routing = self.world.routing()
        for route in self.world.routes.values():
            self.inbox.append(route)
        self.world.note(self.number, f"starts, boot {self.boots}, with replicas {sorted(recovered.groups)}")
        self.perform(self.host.start(recovered.groups.values(), snapshots, snapshot_files))
        life = self.boots
        self.world.after(self.rng.randint(1, swarm.tick_us), self._tick, life)
        self.world.after(50_000, self._refill, life)
        if self.inbox:
            self._wake()

    def die(self, power: bool) -> None:
        """The process ends now, and with `power` the page cache with it."""
        self.up = self.paused = False
        self.inbox = []
        self.world.front_door.died(self)
        if power:
            self.fs.power_loss(self.rng)
        else:
            self.fs.kill()

    def _has_unreadable(self) -> bool:
        return bool(self.damaged) and any(file.unreadable[1] and path in self.fs.injected_reads for path, file in self.fs.files())

    def may_stop(self, reason: str) -> bool:
        """Only for an error that we gave to this very process, and that it names. Never for a read: what is durable is unaffected by that."""
        return _names(reason, self.fs.injected)

    def pause(self) -> None:
        self.pauses += 1
        self.paused = True

    def resume(self, life: int) -> None:
        if self.up and self.boots == life and self.paused:
            self.paused = False
            self._wake()

    # --- turns -------------------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return (self.world.now_us + self.skew_us) // 1_000 + 10_000_000

    def push(self, event: fx.Event) -> None:
        self.inbox.append(event)
        if not self.turn_due and not self.paused:
            self._wake()

    def _wake(self) -> None:
        if not self.turn_due:
            self.turn_due = True
            self.world.after(between(self.rng, self.world.swarm.turn_delay_us), self._turn, self.boots)

    def _turn(self, life: int) -> None:
        if not self.up or life != self.boots:
            return
        self.turn_due = False
        if self.paused or not (self.inbox or self.turn_again):
            return
        events, self.inbox = self.inbox, []
        self.turn_again = False
        self.world.events += len(events)
        if self.world.swarm.http:
            self.perform(self.service.turn(self.now_ms(), events))
            if self.up:
                wrong = resources.left_behind(self)
                if wrong:
                    raise self.world.violation(wrong)
        else:
            self.perform(self.host.turn(self.now_ms(), events))

    def _tick(self, life: int) -> None:
        if self.up and life == self.boots:
            if not self.paused:
                self.push(fx.Tick())
            self.world.after(self.tick_us, self._tick, life)

    def perform(self, effects: list[fx.Effect]) -> None:
        ticket = 0
        for effect in effects:
            if isinstance(effect, fx.SendFrame):
                self.world.net.send(self.number, effect.node, effect.data)
            elif isinstance(effect, fx.Answer):
                self.world.answer(self, effect.token, effect.result)
            elif isinstance(effect, _WAL_EFFECTS):
                if isinstance(effect, fx.WalWrite):
                    ticket = effect.ticket
                    self.noting.append((ticket, self.host._wal._noted))
                self.wal_queue.append(effect)
            elif isinstance(effect, _SNAPSHOT_EFFECTS):
                self.snapshot_queue.append(effect)
            elif isinstance(effect, _CLIENT_EFFECTS):
                self.world.front_door.perform(self, effect)
            elif isinstance(effect, fx.TurnAgain):
                self.turn_again = True
            elif isinstance(effect, fx.PeerRefused):
                self.world.refused_frames += 1
            elif isinstance(effect, fx.GroupFenced):
                self.world.fenced(self, effect)
            else:
                assert isinstance(effect, fx.StopNode), effect
                self.world.stopped(self, effect)
                return
        if self.turn_again:
            self._wake()
        if self.persisting:
            self.unsynced.append((ticket or self.host._wal.ticket, self.persisting))
            self.persisting = []
        if self.wal_queue and not self.disk_busy:
            self._write()
        if self.snapshot_queue and not self.snapshots_busy:
            self.snapshots_busy = True
            self.world.after(between(self.rng, self.world.swarm.sync_us), self._snapshot_step, self.boots)

    # --- the disk ----------------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Like the fsync thread: all that is queued goes to the page cache, then one sync."""
        self.disk_busy = True
        events: list[fx.Event] = []
        try:
            while self.wal_queue:
                events += self.wal_disk.write(self.wal_queue.popleft())
        except SimCrash:
            self.world.crashed(self)
            return
        delay = between(self.rng, self.world.swarm.sync_us)
        self.world.at(max(self.world.now_us + delay, self.stall_until_us), self._sync, self.boots, events)

    def _sync(self, life: int, events: list[fx.Event]) -> None:
        if not self.up or life != self.boots:
            return
        try:
            events = events + self.wal_disk.sync()
        except SimCrash:
            self.world.crashed(self)
            return
        for event in events:
            if isinstance(event, fx.Synced):
                self._note_durable(event.ticket)
            self.push(event)
        self.disk_busy = False
        if self.wal_queue:
            self._write()

    def _refill(self, life: int) -> None:
        if not self.up or life != self.boots:
            return
        try:
            for event in self.wal_disk.refill_spares():
                self.push(event)
        except SimCrash:
            self.world.crashed(self)
            return
        self.world.after(300_000, self._refill, life)

    def _snapshot_step(self, life: int) -> None:
        if not self.up or life != self.boots:
            return
        try:
            for event in self.snapshot_disk.perform([self.snapshot_queue.popleft()]):
                self.push(event)
        except SimCrash:
            self.world.crashed(self)
            return
        if self.snapshot_queue:
            self.world.after(between(self.rng, self.world.swarm.sync_us), self._snapshot_step, life)
        else:
            self.snapshots_busy = False

    # --- what the disk is known to hold, by our own account ------------------------------------------------------------------------

    def _audit(self, group: Group) -> None:
        if group.raft.persist:
            self.persisting.append((group.id, group.replica, list(group.raft.persist)))
        self.world.invariants.audit(self, group)

    def _note_durable(self, ticket: int) -> None:
        while self.noting and self.noting[0][0] <= ticket:
            self.known_synced = self.noting.popleft()[1]
        while self.unsynced and self.unsynced[0][0] <= ticket:
            for group, replica, records in self.unsynced.popleft()[1]:
                held, first, terms = self.durable.get(group, (replica, 1, []))
                if held != replica:
                    first, terms = 1, []
                for record in records:
                    if isinstance(record, EntriesAppended):
                        assert record.first_index == first + len(terms), (record.first_index, first, len(terms))
                        terms.extend(int.from_bytes(entry[:8], "little") for entry in record.entries)
                    elif isinstance(record, HardState):
                        if record.vote:
                            self.world.invariants.note_vote(group, replica, record.term, record.vote)
                    elif isinstance(record, LogTruncated):
                        del terms[record.from_index - first :]
                    elif isinstance(record, SnapshotMark):
                        if record.first_index > first + len(terms):
                            terms = []
                        else:
                            del terms[: record.first_index - first]
                        first = record.first_index
                self.durable[group] = (replica, first, terms)

    def has_durable(self, group: int, replica: int, index: int, term: int) -> bool:
        held, first, terms = self.durable.get(group, (0, 0, []))
        if held != replica or index >= first + len(terms):
            return False
        return index < first or terms[index - first] == term


def _names(reason: str, paths: list[str]) -> bool:
    return any(f"{path}:" in reason or f"'{path}'" in reason for path in paths)
