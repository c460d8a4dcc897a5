"""All groups of one node: `turn(now_ms, events) -> effects`, one turn of the loop. The same object runs in production and in the simulator.

Before us: drivers (or the simulator) gather events. Within a turn events are only stepped and proposed; at its end we flush once: one WAL batch for
all dirty groups, one frame per peer and lane. A leader's appends leave in parallel with its own sync; votes and acknowledgements wait in `_awaiting`
for the ticket that covers them. After us: effects are performed in order. Not here: one group's life (group.py), bytes on disk (wal/), bytes on the
wire (envelope.py).

Failure: an exception in one group fences that group here (no vote, no ack, alarm). An exception in the WAL or in the host itself leaves turn(): the
node stops, because what it would write next cannot be trusted."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from anabranch_node.core import effects as fx
from anabranch_node.core.effects import (
    Answer,
    Effect,
    Event,
    GroupFenced,
    PeerRefused,
    SnapshotFailed,
    SnapshotKey,
    SnapshotLoaded,
    SnapshotsDelete,
    StopNode,
)
from anabranch_node.core.errors import Accepted, DiskFull, Fenced, HotFull, NotHosted, OutcomeUnknown, Refused
from anabranch_node.core.machine import Machine, MachineKind
from anabranch_node.core.raft import errors as raft_errors
from anabranch_node.core.raft import membership
from anabranch_node.core.raft.messages import Append, Heartbeat, HeartbeatAnswer, Message
from anabranch_node.core.raft.raft import Chance, Raft, RaftOptions, Role
from anabranch_node.core.raft.records import Destroyed, HardState, SnapshotMark
from anabranch_node.engine import envelope
from anabranch_node.engine.clocks import Clocks
from anabranch_node.engine.counts import Counts
from anabranch_node.engine.envelope import Letter
from anabranch_node.engine.group import Group, GroupOptions
from anabranch_node.engine.letters import Forward, ForwardAnswer
from anabranch_node.engine.outbox import Outbox
from anabranch_node.engine.snapshots import SnapshotSlots, check_machine_version
from anabranch_node.wal.recovery import RecoveredReplica
from anabranch_node.wal.segment import segment_name
from anabranch_node.wal.wal import Location, Wal
from anabranch_proto.formats import Damaged, FormatError
from anabranch_proto.ids import META_GROUP, NodeIdentity

NOBODY = 0
"""The token of a command that nobody waits for."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    raft: RaftOptions = RaftOptions()
    group: GroupOptions = GroupOptions()
    idle_mark_ticks: int = 1  # without a write for this long, the last sync is noted on disk
    snapshots_at_once_max: int = 2
    disk_free_min_bytes: int = 256 << 20
    hot_bytes_max: int = 1 << 30  # recent data of all groups in memory; beyond it appends are refused
    read_tries_max: int = 5  # of the log, one per tick; then the place counts as damaged


@dataclass(slots=True)
class _AwaitingSync:
    """What one flush may do once its ticket is synced."""

    ticket: int
    stable: list[tuple[Group, int, int, int]]  # (group, last index, last term, term) as they were persisted
    letters: list[tuple[Group, Message]]
    effects: list[Effect]


class Host:
    def __init__(
        self, me: NodeIdentity, options: HostOptions, kind: MachineKind, rng: Chance, boot: int, wal: Wal, meta_kind: MachineKind | None = None
    ) -> None:
        self.me = me
        self.options = options
        self.groups: dict[int, Group] = {}
        self.audit: Callable[[Group], None] | None = None
        """For the simulator: sees each dirty group at the end of a turn, while its effects are still in its lists."""
        self._kinds = (kind, meta_kind or kind)
        self._rng = rng
        self.boot = boot
        self._wal = wal
        self._outbox = Outbox(me)
        self.clocks = Clocks()
        self.hot_bytes = 0  # of all groups, counted once per tick
        self.counts = Counts()
        self._slots = SnapshotSlots(options.snapshots_at_once_max)
        largest = max(options.group.command_bytes_max, options.group.entry_bytes_max)
        if largest > wal.options.entry_bytes_max - 1024:
            raise ValueError(f"entries of {largest} bytes do not fit WAL segments of {wal.options.segment_bytes}")
        self._dirty: dict[int, Group] = {}
        self._awaiting: deque[_AwaitingSync] = deque()
        self._out: list[Effect] = []
        self._after_sync: list[Effect] = []
        self._seal_due = False  # the log has something to write that no group asked for
        self._ticks = 0
        self._quiet_ticks = 0
        self._reads: dict[int, tuple[Location, int]] = {}  # WalRead -> (where, follower; 0: copied forward)
        self._read_counter = 0
        self._retries: list[Callable[[], None]] = []  # reads that failed: tried again at the next tick, not in a loop
        self._failed_reads: dict[tuple[int, int, int], int] = {}  # (replica, segment, offset) -> how often
        self._spare_segments = 1
        self._free_bytes = options.disk_free_min_bytes
        self._now_ms = 0
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            fx.Tick: self._on_tick,
            fx.FrameReceived: self._on_frame,
            fx.Synced: self._on_synced,
            fx.Propose: self._on_propose,
            fx.Read: self._on_read,
            fx.PeerLost: self._on_peer_lost,
            fx.Route: lambda event: self._outbox.set_route(event.replica, event.node, event.incarnation),
            fx.ReplicaCreate: self._on_create,
            fx.ReplicaDestroy: self._on_destroy,
            fx.ChangeMembers: self._on_change,
            fx.TransferLeadership: self._on_transfer,
            fx.TakeSnapshot: self._on_take_snapshot,
            fx.WalBytes: self._on_wal_bytes,
            fx.DiskFailed: self._on_disk_failed,
            fx.DiskSpace: self._on_disk_space,
            fx.SnapshotAppended: lambda event: self._on_snapshot(event, lambda group: group.snapshots.on_appended(event, self._out)),
            fx.SnapshotSaved: lambda event: self._on_snapshot(event, lambda group: group.snapshots.on_saved(event)),
            fx.SnapshotBytes: lambda event: self._on_snapshot(event, lambda group: group.snapshots.on_bytes(event)),
            fx.SnapshotReceived: lambda event: self._on_snapshot(event, lambda group: group.snapshots.on_received(event)),
            fx.SnapshotVerified: lambda event: self._on_snapshot(event, lambda group: group.snapshots.on_verified(event, self._out)),
            fx.SnapshotLoaded: lambda event: self._on_snapshot(event, lambda group: group.snapshots.on_loaded(event)),
            fx.SnapshotFailed: lambda event: self._on_snapshot(event, lambda group: group.snapshots.on_failed(event)),
        }

    # --- start -------------------------------------------------------------------------------------------------------------------

    def start(
        self,
        replicas: Iterable[RecoveredReplica],
        snapshots: dict[tuple[int, int], SnapshotLoaded | SnapshotFailed],
        files: dict[tuple[int, int], list[SnapshotKey]],
    ) -> list[Effect]:
        """Open the log and take up what recovery found. `snapshots` has what became of loading each replica's snapshot; `files` all that lie there.

        A replica without the state its log stands on is fenced, and so is one whose log is damaged. That is not written down: the file may only
        have failed to open, or be newer than we are. If it is damaged, the next start finds that, too."""
        self._out.extend(self._wal.open())
        unknown = dict(files)
        for found in replicas:
            unknown.pop((found.group, found.replica), None)
            reason = found.fenced
            if not reason:
                try:
                    machine = self._machine_at(found.group, found.snapshot, snapshots.get((found.group, found.replica)))
                    self._add(found.group, found.replica, found.hard, found.snapshot, found.entries, machine)
                    self._delete_older(found)
                    continue
                except (FormatError, AssertionError) as error:
                    reason = str(error)
            nothing = SnapshotMark(0, 0, membership.encode(membership.Configuration()), 1, 0)
            empty = self._kind_of(found.group)()
            self._fence(self._add(found.group, found.replica, HardState(0, 0, 0), nothing, [], empty), reason, durable=False)
        # A process that died after a replica was destroyed, and before its files were.
        self._out.extend(SnapshotsDelete(group, replica, None) for group, replica in unknown)
        return self._end_turn()

    def _machine_at(self, group: int, mark: SnapshotMark, loaded: SnapshotLoaded | SnapshotFailed | None) -> Machine:
        """The state that the log stands on. Raises a FormatError that names the file."""
        if mark.index == 0:
            return self._kind_of(group)()
        where = f"snapshot at {mark.index}"
        if isinstance(loaded, SnapshotFailed):
            raise FormatError(where, loaded.reason)
        if loaded is None:
            raise FormatError(where, "it is missing")
        check_machine_version(loaded.header, where)
        return self._kind_of(group).restore(loaded.chunks)

    def _kind_of(self, group: int) -> MachineKind:
        return self._kinds[group == META_GROUP]

    def _delete_older(self, found: RecoveredReplica) -> None:
        if found.snapshot.index:
            key = SnapshotKey(found.group, found.replica, found.snapshot.index, found.snapshot.term)
            self._out.append(SnapshotsDelete(found.group, found.replica, key))

    def _add(self, group: int, replica: int, hard: HardState, mark: SnapshotMark, entries: list[bytes], machine: Any) -> Group:
        raft = Raft(replica, self.options.raft, self._rng, self.boot, hard, mark, entries, self._ticks)
        added = Group(group, raft, self._kind_of(group), machine, self.options.group, self.me.cluster_id, self._slots, self.counts)
        self.groups[group] = added
        self._dirty[group] = added
        return added

    # --- a turn ------------------------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int, events: Iterable[Event]) -> list[Effect]:
        effects = self.step(now_ms, events)
        effects.extend(self.frames())
        return effects

    def step(self, now_ms: int, events: Iterable[Event]) -> list[Effect]:
        """A turn without its frames: the service may step again for what the answers ask for, so that one turn still sends one frame per peer."""
        self._now_ms = now_ms
        for event in events:
            self._handlers[type(event)](event)
        return self._end_turn()

    @property
    def has_work(self) -> bool:
        """Something was asked since the last step."""
        return bool(self._dirty or self._out)

    def frames(self) -> list[fx.SendFrame]:
        return self._outbox.frames(self._now_ms)

    def _end_turn(self) -> list[Effect]:
        while self._dirty or self._seal_due:
            self._flush()
        self._maintain_log()
        out, self._out = self._out, []
        return out

    def _maintain_log(self) -> None:
        maintenance = self._wal.maintenance()
        self._out.extend(maintenance.effects)
        for location in maintenance.copies:
            self._read_wal(location, 0)
        for pinned in maintenance.groups_to_snapshot:
            group = self.groups.get(pinned.group)
            if group is None or group.replica != pinned.replica or group.fenced:
                continue
            if group.raft.log.snapshot_index >= pinned.last_index:
                group.raft.cut_log(pinned.last_index + 1)  # persisted at the group's next turn
                self._dirty[group.id] = group
            elif group.machine.applied_index >= pinned.last_index:
                group.snapshots.request()

    def _flush(self) -> None:
        """One WAL batch for everything the dirty groups want, and whatever needs no sync leaves at once."""
        dirty, self._dirty = self._dirty, {}
        self._seal_due = False
        waits = _AwaitingSync(0, [], [], self._after_sync)
        self._after_sync = []
        for group in dirty.values():
            if not group.fenced:
                try:  # as in _guarded(), without a closure for each group and turn
                    self._finish(group, waits)
                except Exception as error:
                    self._fence(group, f"{type(error).__name__}: {error}", durable=False)
        waits.ticket, written = self._wal.seal()
        if written:
            self._quiet_ticks = 0
            self._out.extend(written)
        if waits.stable or waits.letters or waits.effects:
            if waits.ticket <= self._wal.synced_ticket:
                self._release(waits)
            else:
                self._awaiting.append(waits)

    def _finish(self, group: Group, waits: _AwaitingSync) -> None:
        group.finish(self._now_ms, self._out)
        raft = group.raft
        if self.audit is not None:
            self.audit(group)
        if raft.persist:
            for record in raft.persist:
                self._wal.stage(group.id, raft.id, record)
            raft.persist.clear()
            waits.stable.append((group, raft.log.last_index, raft.log.last_term, raft.term))
        if raft.send_now:
            for m in raft.send_now:
                self._outbox.add(group.id, m)
            raft.send_now.clear()
        if raft.send_after_sync:
            waits.letters.extend((group, m) for m in raft.send_after_sync)
            raft.send_after_sync.clear()
        if raft.loads_wanted:
            for replica, first_index in raft.loads_wanted:
                self._load_entries(group, replica, first_index)
            raft.loads_wanted.clear()
        if group.snapshots.obsolete_after_sync is not None:
            waits.effects.append(SnapshotsDelete(group.id, raft.id, group.snapshots.obsolete_after_sync))
            group.snapshots.obsolete_after_sync = None

    def _on_synced(self, event: fx.Synced) -> None:
        self._wal.on_synced(event.ticket)
        while self._awaiting and self._awaiting[0].ticket <= event.ticket:
            self._release(self._awaiting.popleft())

    def _release(self, waits: _AwaitingSync) -> None:
        self._out.extend(waits.effects)
        for group, last_index, last_term, term in waits.stable:
            if self._is_current(group):
                try:
                    if group.raft.synced(last_index, last_term, term):
                        self._dirty[group.id] = group
                except Exception as error:
                    self._fence(group, f"{type(error).__name__}: {error}", durable=False)
        for group, m in waits.letters:
            if not self._is_current(group):
                continue
            if m.to == group.replica:
                self._step(group, m)
            else:
                self._outbox.add(group.id, m)

    def _is_current(self, group: Group) -> bool:
        """Not fenced, not destroyed, not replaced since."""
        return not group.fenced and self.groups.get(group.id) is group

    def _guarded(self, group: Group, work: Callable[[Group], None]) -> None:
        """What goes wrong inside one group ends that group here, by name, and no other."""
        try:
            work(group)
        except Exception as error:
            self._fence(group, f"{type(error).__name__}: {error}", durable=False)

    def _fence(self, group: Group, reason: str, durable: bool) -> None:
        if group.fenced:
            return
        group.fenced = reason
        raft = group.raft
        for pending in (raft.persist, raft.send_now, raft.send_after_sync, raft.committed):
            pending.clear()
        if durable:
            self._wal.fence(group.id, group.replica, reason)
            self._seal_due = True
        self._out.extend(group.abandon(reason))
        self._out.append(GroupFenced(group.id, group.replica, reason))

    def _step(self, group: Group, m: Message) -> None:
        raft = group.raft
        try:
            raft.step(m)
            if (type(m) is Heartbeat or type(m) is HeartbeatAnswer) and group.id not in self._dirty and raft.is_idle():
                for answer in raft.send_now:
                    self._outbox.add(group.id, answer)
                raft.send_now.clear()
                return
        except Exception as error:
            self._fence(group, f"{type(error).__name__}: {error}", durable=False)
        self._dirty[group.id] = group

    # --- events ------------------------------------------------------------------------------------------------------------------

    def _on_tick(self, _: fx.Tick) -> None:
        self._ticks += 1
        # What is uncommitted will be hot; it matters where the disk or the followers are slow.
        self.hot_bytes = sum([group.machine.hot_bytes + group.raft.uncommitted_bytes for group in self.groups.values()])
        for group in self.groups.values():
            if group.fenced:
                continue
            try:  # not _guarded(): this runs for every group, twenty times a second
                if group.raft.tick():
                    self._dirty[group.id] = group
                if group.raft.role is Role.LEADER:
                    self._keep_time(group)
                if group.busy:
                    group.tick(self._out)
                    self._dirty[group.id] = group
            except Exception as error:
                self._fence(group, f"{type(error).__name__}: {error}", durable=False)
        if self._retries:
            retries, self._retries = self._retries, []
            for retry in retries:
                retry()
        self._quiet_ticks += 1
        if self._quiet_ticks > self.options.idle_mark_ticks:
            self._out.extend(self._wal.idle_mark())

    def _on_frame(self, event: fx.FrameReceived) -> None:
        try:
            node, incarnation, its_now_ms, letters = envelope.decode(event.data, self.me, event.node)
        except FormatError as error:
            self._out.append(PeerRefused(event.node, str(error)))
            return
        self.clocks.heard(node, its_now_ms, self._now_ms)
        no_room = self._spare_segments == 0
        for group_id, m in letters:
            if isinstance(m, Forward | ForwardAnswer):
                self._out.append(fx.LetterReceived(node, incarnation, group_id, m))
                continue
            group = self.groups.get(group_id)
            if group is None or m.to != group.replica:
                self._out.append(
                    PeerRefused(event.node, f"{type(m).__name__} from replica {m.src} is for replica {m.to} of group {group_id}, which is not here")
                )
            elif not group.fenced and not (no_room and type(m) is Append and m.block):
                self._step(group, m)

    def _on_peer_lost(self, event: fx.PeerLost) -> None:
        replicas = self._outbox.replicas_on(event.node)
        for group in self.groups.values():
            if group.raft.leader in replicas:
                group.raft.peer_lost(group.raft.leader)

    def _serving(self, group_id: int, token: int) -> Group | None:
        group = self.groups.get(group_id)
        if group is None:
            self._out.append(Answer(token, NotHosted(group_id)))
            return None
        if group.fenced:
            self._out.append(Answer(token, Fenced(group.fenced)))
            return None
        self._dirty[group_id] = group
        return group

    def _on_propose(self, event: fx.Propose) -> None:
        self.propose(self._now_ms, event.token, event.group, event.command)

    def propose(self, now_ms: int, token: int, group_id: int, command: Any) -> None:
        """The same as a Propose in the next step, without an event to carry it: the service asks so, thousands of times a second."""
        group = self._serving(group_id, token)
        if group is None:
            return
        self._now_ms = now_ms
        if self._spare_segments == 0 or (self._free_bytes < self.options.disk_free_min_bytes and _fills_the_disk(command)):
            self._out.append(Answer(token, DiskFull()))
        elif self.hot_bytes > self.options.hot_bytes_max and getattr(command, "body", None):
            self._out.append(Answer(token, HotFull()))
        else:
            if group.clock_term != group.raft.term:
                self._bound_clock(group)  # a leader since the last tick: its clock may be the wrong one
            group.propose(token, command, now_ms - group.clock_ahead_ms, self._out)

    def _bound_clock(self, group: Group) -> None:
        """See whether the other voters say that our clock runs ahead."""
        routes = [self._outbox.node_of(replica) for replica in group.raft.config.voters]
        others = [route[0] for route in routes if route is not None and route[0] != self.me.node_id]
        group.clock_ahead_ms = self._now_ms - self.clocks.bounded(self._now_ms, others)
        group.clock_term = group.raft.term

    def _keep_time(self, group: Group) -> None:
        """Once per tick of a leader: what its clock is worth, and what is due by it."""
        self._bound_clock(group)
        for command in group.machine.due(self._now_ms - group.clock_ahead_ms):
            group.propose(NOBODY, command, self._now_ms - group.clock_ahead_ms, self._out)
            self._dirty[group.id] = group

    def send_letter(self, node: int, incarnation: int, group: int, letter: Letter, bulk: bool) -> None:
        """Leaves with the frames of this turn."""
        self._outbox.add_letter(node, incarnation, group, letter, bulk)

    def place_of(self, replica: int) -> tuple[int, int] | None:
        """(node, incarnation) of a replica."""
        return self._outbox.node_of(replica)

    def _on_read(self, event: fx.Read) -> None:
        self.read(event.token, event.group, event.query)

    def read(self, token: int, group_id: int, query: Any) -> None:
        """The same as a Read in the next step."""
        group = self._serving(group_id, token)
        if group is not None:
            group.read(token, query, self._out)

    def _on_change(self, event: fx.ChangeMembers) -> None:
        self._ask_raft(event.group, event.token, lambda raft: raft.propose_change(event.voters, event.learners)[0])

    def _on_transfer(self, event: fx.TransferLeadership) -> None:
        def transfer(raft: Raft) -> int:
            raft.transfer_leadership(event.target)
            return raft.log.last_index

        self._ask_raft(event.group, event.token, transfer)

    def _ask_raft(self, group_id: int, token: int, ask: Callable[[Raft], int]) -> None:
        group = self._serving(group_id, token)
        if group is None:
            return
        try:
            self._out.append(Answer(token, Accepted(ask(group.raft))))
        except raft_errors.Refused as refusal:
            self._out.append(Answer(token, Refused(str(refusal))))
        except Exception as error:
            self._out.append(Answer(token, OutcomeUnknown(str(error))))
            self._fence(group, f"{type(error).__name__}: {error}", durable=False)

    def _on_take_snapshot(self, event: fx.TakeSnapshot) -> None:
        group = self.groups.get(event.group)
        if group is not None and not group.fenced:
            group.snapshots.request()
            self._dirty[group.id] = group

    def _on_create(self, event: fx.ReplicaCreate) -> None:
        held = self.groups.get(event.group)
        if held is not None and held.replica == event.replica:
            return
        if (event.group, event.replica) in self._wal.destroyed:
            self._out.append(GroupFenced(event.group, event.replica, "this replica left its group for ever; its id is not used again"))
            return
        if held is not None:
            self._destroy(held)
        mark = SnapshotMark(0, 0, membership.encode(event.config), 1, 0)
        self._wal.stage(event.group, event.replica, mark)
        self._wal.stage(event.group, event.replica, HardState(0, 0, 0))
        added = self._add(event.group, event.replica, HardState(0, 0, 0), mark, [], self._kind_of(event.group)())
        if event.campaign:
            # Not at once: the other replicas are created in the same moment, and must be there to vote.
            added.raft.timeout_ticks = self.options.raft.peer_lost_ticks[0]

    def _on_destroy(self, event: fx.ReplicaDestroy) -> None:
        group = self.groups.get(event.group)
        if group is not None and group.replica == event.replica:
            self._destroy(group)
            del self.groups[event.group]
            self._dirty.pop(event.group, None)

    def _destroy(self, group: Group) -> None:
        self.counts.elections_before += group.raft.elections
        if not group.fenced:
            group.fenced = "destroyed"
            self._out.extend(group.abandon("this replica left the group"))
        self._wal.stage(group.id, group.replica, Destroyed())
        self._seal_due = True
        # Not before that is durable: a crash in between would find a replica whose log stands on a snapshot that is gone.
        self._after_sync.append(SnapshotsDelete(group.id, group.replica, None))

    # --- the disk ----------------------------------------------------------------------------------------------------------------

    def _on_disk_failed(self, event: fx.DiskFailed) -> None:
        for group in self.groups.values():
            self._out.extend(group.abandon(event.reason))
        self._dirty.clear()
        self._out.append(StopNode(event.reason))

    def _on_disk_space(self, event: fx.DiskSpace) -> None:
        self._spare_segments, self._free_bytes = event.spare_segments, event.free_bytes

    def _load_entries(self, group: Group, replica: int, first_index: int) -> None:
        locations = self._wal.locate(group.id, group.replica, first_index, self.options.raft.append_bytes_max)
        if locations:
            self._read_wal(locations[0], replica)
        else:
            self._guarded(group, lambda group: group.raft.entries_loaded(replica, first_index, []))

    def _read_wal(self, location: Location, replica: int) -> None:
        self._read_counter += 1
        self._reads[self._read_counter] = (location, replica)
        self._out.append(self._wal.read(location, self._read_counter))

    def _on_wal_bytes(self, event: fx.WalBytes) -> None:
        location, follower = self._reads.pop(event.request)
        place = (location.replica, location.segment, location.offset)
        try:
            if event.error:
                raise Damaged(segment_name(location.segment), event.error)
            if follower:
                first_index, entries = self._wal.decode_read(location, event.data)
                self._give_entries(location, follower, first_index, entries)
            else:
                self._wal.copy_forward(location, event.data)
                self._seal_due = True
            self._failed_reads.pop(place, None)
        except Damaged as error:
            self._failed_reads[place] = failures = self._failed_reads.get(place, 0) + 1
            if not event.error or failures >= self.options.read_tries_max:
                self._on_damage(location, str(error))
            # Whoever waits asks again at the next tick: by then it may be readable, moved, or no longer needed.
            first_index = location.extents[0].first_index
            again = (lambda: self._give_entries(location, follower, first_index, [])) if follower else (lambda: self._wal.copy_dropped(location))
            self._retries.append(again)

    def _give_entries(self, location: Location, follower: int, first_index: int, entries: list[bytes]) -> None:
        group = self.groups.get(location.group)
        if group is not None and group.replica == location.replica and not group.fenced:
            self._dirty[group.id] = group
            self._guarded(group, lambda group: group.raft.entries_loaded(follower, first_index, entries))

    def _on_damage(self, location: Location, reason: str) -> None:
        """Entries of a replica cannot be read back. What is applied is in the machine: a new snapshot makes them unnecessary. Otherwise the log is
        lost."""
        group = self.groups.get(location.group)
        last_index = location.extents[-1].last_index
        if group is None or group.replica != location.replica or group.fenced:
            self._wal.fence(location.group, location.replica, reason)  # so that it does not pin the log for ever
            self._seal_due = True
        elif last_index <= group.machine.applied_index:
            group.snapshots.replace_log_through(last_index)
            self._dirty[group.id] = group
        else:
            self._fence(group, reason, durable=True)

    def _on_snapshot(self, event: Any, work: Callable[[Group], None]) -> None:
        group = self.groups.get(event.key.group)
        if group is not None and group.replica == event.key.replica and not group.fenced:
            self._dirty[group.id] = group
            self._guarded(group, work)

    # --- looking in --------------------------------------------------------------------------------------------------------------

    def leads(self) -> list[int]:
        return [group.id for group in self.groups.values() if group.raft.role is Role.LEADER and not group.fenced]

    @property
    def elections(self) -> int:
        """Started by replicas of this node, those that left included."""
        return self.counts.elections_before + sum(group.raft.elections for group in self.groups.values())

    @property
    def wal_segments(self) -> int:
        """Files of the log that are kept, the one being written included."""
        return len(self._wal.segments)


def _fills_the_disk(command: Any) -> bool:
    """Creates and appends; not a delete, a touch, a close without a body, or anything of the meta group."""
    body = getattr(command, "body", None)
    return body is not None and (bool(body) or not getattr(command, "close", False))
