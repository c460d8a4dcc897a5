"""The host by itself: one batch and one frame per turn, what waits for the disk, what a failure ends and what it does not."""

from random import Random
from typing import Any

import pytest

from anabranch_node.core import effects as fx
from anabranch_node.core.errors import DiskFull, Fenced, NotHosted, OutcomeUnknown, ReadUnavailable, Refused, TooLarge
from anabranch_node.core.raft import entry, membership
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import Append as AppendMessage
from anabranch_node.core.raft.messages import (
    AppendAnswer,
    Heartbeat,
    HeartbeatAnswer,
    PreVote,
    PreVoteAnswer,
    ReadIndexAnswer,
    ReadIndexAsk,
    Vote,
    VoteAnswer,
)
from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.core.raft.records import HardState, SnapshotMark
from anabranch_node.core.stream.commands import Append, Create, Producer
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.queries import ReadAt
from anabranch_node.core.stream.results import Appended, Created, ReadSlice
from anabranch_node.engine import envelope
from anabranch_node.engine.group import GroupOptions
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.engine.snapshots import SnapshotOptions
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.recovery import RecoveredReplica
from anabranch_node.wal.wal import Wal
from anabranch_proto import formats
from anabranch_proto.ids import NodeIdentity
from tests.checkers.opened import OpenedMachine

ME = NodeIdentity("c1", 1, 0xA)
OTHER = NodeIdentity("c1", 2, 0xB)
OPTIONS = HostOptions(raft=RaftOptions(election_ticks=10, heartbeat_ticks=2), group=GroupOptions(command_bytes_max=1_000_000))


class Node:
    """A host and a disk that syncs when told to."""

    def __init__(self, options: HostOptions = OPTIONS, me: NodeIdentity = ME) -> None:
        self.wal = Wal(me, WalOptions(segment_bytes=4 << 20))
        self.host = Host(me, options, OpenedMachine, Random(1), 1, self.wal)
        self.host.start([], {}, {})
        self.out: list[fx.Effect] = []

    def turn(self, *events: fx.Event) -> list[fx.Effect]:
        self.out = self.host.turn(1_000, events)
        return self.out

    def sync(self) -> list[fx.Effect]:
        return self.turn(fx.Synced(self.wal.ticket)) if self.wal.ticket > self.wal.synced_ticket else []

    def run(self, *events: fx.Event) -> list[fx.Effect]:
        """A turn, and all syncs that it leads to."""
        seen = self.turn(*events)
        while more := self.sync():
            seen = seen + more
        return seen

    def lead(self, group: int, replica: int) -> None:
        self.run(fx.ReplicaCreate(group, replica, Configuration((replica,))))
        for _ in range(30):
            self.run(fx.Tick())
        assert group in self.host.leads()


def answers(effects: list[fx.Effect]) -> dict[int, Any]:
    return {effect.token: effect.result for effect in effects if isinstance(effect, fx.Answer)}


def kinds(effects: list[fx.Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def frame(letters: list[tuple[int, Any]], src: NodeIdentity = OTHER, to: NodeIdentity = ME) -> fx.FrameReceived:
    return fx.FrameReceived(src.node_id, envelope.encode(src, to.node_id, to.incarnation, 1_000, letters))


def test_one_voter_answers_only_after_its_own_sync() -> None:
    node = Node()
    node.lead(1, 7)
    effects = node.turn(fx.Propose(1, 1, Create("b/s", "text/plain", 0)), fx.Propose(2, 1, Append("b/s", b"hello", 0)))
    assert kinds(effects) == ["WalWrite"], "one batch for the turn, and no answer before it is durable"
    assert answers(node.sync()) == {1: Created(0, existed=False, incarnation=2 << 16), 2: Appended(0, 5)}
    assert answers(node.run(fx.Read(3, 1, ReadAt("b/s", 0, 100))))[3] == ReadSlice(0, 5, b"hello", True, 2 << 16, "text/plain", tail=5)


def test_all_groups_of_a_turn_share_one_batch_and_one_frame() -> None:
    node = Node()
    for group in range(1, 41):
        node.turn(fx.Route(1000 + group, 2, OTHER.incarnation), fx.ReplicaCreate(group, group, Configuration((group, 1000 + group))))
    node.run()
    beats = [(group, Heartbeat(group, 1000 + group, 1, 0, 0)) for group in range(1, 41)]
    effects = node.turn(frame(beats))
    assert kinds(effects) == ["WalWrite"], "forty new terms: one write; the answers wait for it"
    assert kinds(node.sync()) == ["SendFrame"], "forty answers: one frame"


def test_an_idle_group_costs_nothing_between_heartbeats() -> None:
    node = Node(HostOptions(raft=RaftOptions(election_ticks=100), group=OPTIONS.group))
    for group in range(1, 20):
        node.turn(fx.ReplicaCreate(group, group, Configuration((group, 100 + group))))
    node.run()
    node.run(frame([(group, Heartbeat(group, 100 + group, 1, 0, 0)) for group in range(1, 20)]))
    marks = [effect for _ in range(10) for effect in node.run(fx.Tick())]
    assert kinds(marks) == ["WalWrite", "SyncMark"], "the last sync is noted, once"
    assert [node.run(fx.Tick()) for _ in range(50)] == [[]] * 50


def test_an_exception_in_apply_fences_that_group_only(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.lead(1, 7)
    node.lead(2, 8)
    node.run(fx.Propose(1, 1, Create("b/s", "text/plain", 0)), fx.Propose(2, 2, Create("b/t", "text/plain", 0)))

    def broken(machine: StreamMachine, index: int, commands: Any) -> Any:
        raise ZeroDivisionError("a bug in apply")

    monkeypatch.setattr(StreamMachine, "apply_commands", broken)
    effects = node.run(fx.Propose(3, 1, Append("b/s", b"x", 0)))
    monkeypatch.undo()
    fenced = [effect for effect in effects if isinstance(effect, fx.GroupFenced)]
    assert [(one.group, one.replica) for one in fenced] == [(1, 7)]
    assert "a bug in apply" in fenced[0].reason
    later = answers(node.run(fx.Propose(4, 1, Append("b/s", b"x", 0)), fx.Propose(5, 2, Append("b/t", b"x", 0)), fx.Read(6, 1, ReadAt("b/s", 0, 1))))
    assert isinstance(later[4], Fenced) and isinstance(later[6], Fenced)
    assert later[5] == Appended(0, 1)
    assert node.run(frame([(1, Vote(7, 9, 50, 90, 50, False))])) == [], "a fenced replica does not vote"


def test_an_unknown_command_version_fences_the_group_and_is_never_skipped() -> None:
    node = Node()
    node.run(fx.Route(9, 2, OTHER.incarnation), fx.ReplicaCreate(1, 7, Configuration((7, 9))))
    newer = entry.encode(1, 200, b"from the future")
    effects = node.run(frame([(1, AppendMessage(7, 9, 1, 0, 0, 1, newer))]))
    reasons = [effect.reason for effect in effects if isinstance(effect, fx.GroupFenced)]
    assert len(reasons) == 1 and "version 200" in reasons[0] and "upgrade" in reasons[0]
    assert node.host.groups[1].machine.applied_index == 0


def test_a_vote_leaves_only_after_its_sync_and_never_from_a_failed_disk() -> None:
    node = Node()
    node.run(fx.Route(9, 2, OTHER.incarnation), fx.ReplicaCreate(1, 7, Configuration((7, 9))))
    assert kinds(node.turn(frame([(1, Vote(7, 9, 5, 0, 0, False))]))) == ["WalWrite"]
    sent = node.sync()
    assert kinds(sent) == ["SendFrame"]
    assert isinstance(sent[0], fx.SendFrame)
    assert envelope.decode(sent[0].data, OTHER, 1)[3] == [(1, VoteAnswer(9, 7, 5, True))]
    assert kinds(node.turn(frame([(1, Vote(7, 9, 6, 0, 0, False))]))) == ["WalWrite"]
    effects = node.turn(fx.DiskFailed("fdatasync: EIO"))
    assert effects == [fx.StopNode("fdatasync: EIO")]


def test_waiters_learn_that_the_outcome_is_unknown_when_the_disk_fails() -> None:
    node = Node()
    node.lead(1, 7)
    node.turn(fx.Propose(1, 1, Create("b/s", "text/plain", 0)))
    result = answers(node.turn(fx.DiskFailed("EIO")))[1]
    assert isinstance(result, OutcomeUnknown) and not result.definite


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (frame([], src=OTHER._replace(cluster_id="c2")), "belongs to cluster c2"),
        (frame([], to=ME._replace(incarnation=0xF)), "for node 1 incarnation f"),
        (frame([], to=ME._replace(node_id=3)), "for node 3"),
        (fx.FrameReceived(2, frame([], src=OTHER._replace(node_id=4)).data), "says it comes from node 4"),
        (frame([(9, Heartbeat(7, 9, 1, 0, 0))]), "group 9, which is not here"),
        (frame([(1, Heartbeat(8, 9, 1, 0, 0))]), "is for replica 8 of group 1"),
        (fx.FrameReceived(2, b"ABPF"), "shorter than a frame header"),
        (fx.FrameReceived(2, b"GET / HTTP/1.1\r\n\r\n"), "not a peer frame"),
        (fx.FrameReceived(2, b"ABPF" + (formats.PEER_FRAME.version + 1).to_bytes(2, "little") + bytes(8)), "newer than"),
        (fx.FrameReceived(2, frame([]).data[:-1] + b"?"), "checksum"),
    ],
    ids=["cluster", "incarnation", "node", "sender", "group", "replica", "short", "garbage", "newer", "damaged"],
)
def test_a_frame_that_is_not_for_us_is_refused_by_name(event: fx.FrameReceived, named: str) -> None:
    node = Node()
    node.run(fx.ReplicaCreate(1, 7, Configuration((7, 9))))
    before = node.host.groups[1].raft.term
    effects = node.run(event)
    assert kinds(effects) == ["PeerRefused"]
    assert isinstance(effects[0], fx.PeerRefused)
    assert named in effects[0].reason and "node 2" in f"node {effects[0].node}"
    assert node.host.groups[1].raft.term == before


def test_a_nearly_full_disk_refuses_appends_and_serves_the_rest() -> None:
    node = Node()
    node.lead(1, 7)
    node.run(fx.Propose(1, 1, Create("b/s", "text/plain", 0)), fx.Propose(2, 1, Append("b/s", b"kept", 0)))
    node.run(fx.DiskSpace(spare_segments=0, free_bytes=0))
    result = answers(node.run(fx.Propose(3, 1, Append("b/s", b"no", 0)), fx.Read(4, 1, ReadAt("b/s", 0, 100))))
    assert isinstance(result[3], DiskFull) and result[3].definite
    assert result[4].data == b"kept"
    node.run(fx.DiskSpace(spare_segments=2, free_bytes=1 << 40))
    assert answers(node.run(fx.Propose(5, 1, Append("b/s", b"yes", 0))))[5] == Appended(4, 7)


def test_a_follower_without_reserve_takes_no_entries_but_votes() -> None:
    node = Node()
    node.run(fx.Route(9, 2, OTHER.incarnation), fx.ReplicaCreate(1, 7, Configuration((7, 9))), fx.DiskSpace(0, 0))
    node.run(frame([(1, AppendMessage(7, 9, 1, 0, 0, 0, entry.encode(1, entry.NOOP, b"")))]))
    assert node.host.groups[1].raft.log.last_index == 0
    assert "SendFrame" in kinds(node.run(frame([(1, Vote(7, 9, 3, 0, 0, False))])))


def test_requests_for_what_is_not_here_or_too_large() -> None:
    node = Node()
    node.lead(1, 7)
    result = answers(
        node.run(fx.Propose(1, 2, Create("b/s", "x", 0)), fx.Read(2, 2, ReadAt("b/s", 0, 1)), fx.Propose(3, 1, Append("b/s", bytes(1_000_001), 0)))
    )
    assert result == {1: NotHosted(2), 2: NotHosted(2), 3: TooLarge(1_000_000)}


def test_destroyed_replica_keeps_its_snapshots_until_that_is_durable() -> None:
    """Simulator seed 162: files deleted first, then a crash: the replica was back without the state that its log stands on."""
    node = Node()
    node.lead(1, 7)
    assert "SnapshotsDelete" not in kinds(node.turn(fx.ReplicaDestroy(1, 7)))
    assert fx.SnapshotsDelete(1, 7, None) in node.sync()
    effects = node.run(fx.ReplicaCreate(1, 7, Configuration((7,))))
    assert kinds(effects) == ["GroupFenced"], "an id that left is never used again"
    assert 1 not in node.host.groups


def test_only_older_snapshots_are_deleted_and_only_after_the_mark_is_synced() -> None:
    """Simulator seed 187: the clean-up after one snapshot deleted the next one, whose mark was on its way to the disk."""
    node = Node(HostOptions(raft=OPTIONS.raft, group=GroupOptions(command_bytes_max=1_000, snapshots=SnapshotOptions(tail_entries=0))))
    node.lead(1, 7)
    node.run(fx.Propose(1, 1, Create("b/s", "text/plain", 0)))
    taken = node.run(fx.TakeSnapshot(1))
    key = next(effect.key for effect in taken if isinstance(effect, fx.SnapshotOpen))
    assert kinds(node.run(fx.SnapshotAppended(key))) == ["SnapshotFinish"]
    assert node.host.groups[1].raft.log.snapshot_index == 0, "the log is not cut before the file is durable"
    assert kinds(node.turn(fx.SnapshotSaved(key, 100))) == ["WalWrite"]
    assert node.host.groups[1].raft.log.first_index == key.index + 1
    assert fx.SnapshotsDelete(1, 7, key) in node.sync()


def test_at_most_two_groups_write_snapshots_at_once() -> None:
    node = Node()
    for group in (1, 2, 3):
        node.lead(group, 10 + group)
        node.run(fx.Propose(group, group, Create("b/s", "text/plain", 0)))
    effects = node.run(*[fx.TakeSnapshot(group) for group in (1, 2, 3)])
    opened = [effect.key for effect in effects if isinstance(effect, fx.SnapshotOpen)]
    assert len(opened) == 2
    effects = node.run(fx.SnapshotFailed(opened[0], "disk full"), fx.Tick())
    assert [effect.key.group for effect in effects if isinstance(effect, fx.SnapshotOpen)] == [3]


def test_a_snapshot_that_cannot_be_read_at_start_fences_without_touching_the_log() -> None:
    """It may be a passing error, or a file of a newer version: the next start must find everything as it was."""
    node = Node()
    node.lead(1, 7)
    raft = node.host.groups[1].raft
    mark = SnapshotMark(1, raft.term, membership.encode(Configuration((7,))), 2, raft.term)
    found = RecoveredReplica(1, 7, HardState(raft.term, 7, 1), mark, [], "")
    again = Host(ME, OPTIONS, OpenedMachine, Random(1), 2, Wal(ME, WalOptions(segment_bytes=4 << 20)))
    key = fx.SnapshotKey(1, 7, 1, raft.term)
    for loaded in ({(1, 7): fx.SnapshotFailed(key, "Too many open files")}, {}):
        effects = again.start([found], loaded, {(1, 7): [key]})
        assert kinds(effects) == ["SegmentCreate", "GroupFenced"], "an alarm, and nothing written about the replica"
        again = Host(ME, OPTIONS, OpenedMachine, Random(1), 2, Wal(ME, WalOptions(segment_bytes=4 << 20)))


@pytest.mark.parametrize(
    "command",
    [Append("b/\ud800", b"x", 0), Append("b/s", b"x", 0, Producer("p", 1 << 70, 0)), Append("b/s", object(), 0)],  # type: ignore[arg-type]
    ids=["surrogate", "huge epoch", "not bytes"],
)
def test_a_request_that_cannot_be_spelt_is_refused_alone(command: Append) -> None:
    node = Node()
    node.lead(1, 7)
    node.run(fx.Propose(1, 1, Create("b/s", "text/plain", 0)))
    result = answers(node.run(fx.Propose(2, 1, command), fx.Propose(3, 1, Append("b/s", b"good", 0)), fx.Read(4, 1, ReadAt("b/s", -1, 1))))
    assert isinstance(result[2], Refused) and result[2].definite
    assert result[3] == Appended(0, 4)
    assert 4 in result
    assert not node.host.groups[1].fenced


def test_a_change_that_makes_no_sense_is_refused_and_harms_nobody() -> None:
    node = Node()
    node.lead(1, 7)
    for token, voters in enumerate([(), (7, 7), (0,), (-1,), (1 << 64,), tuple(range(1, 300))]):
        assert isinstance(answers(node.run(fx.ChangeMembers(token, 1, voters, ())))[token], Refused)
    assert isinstance(answers(node.run(fx.TransferLeadership(99, 1, 5)))[99], Refused)


def test_everyone_is_answered_when_a_group_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.lead(1, 7)
    node.run(fx.Propose(1, 1, Create("b/s", "text/plain", 0)))

    def broken(machine: StreamMachine, index: int, commands: Any) -> Any:
        raise ZeroDivisionError("a bug in apply")

    node.turn(fx.Propose(2, 1, Append("b/s", b"x", 0)), fx.Propose(3, 1, Append("b/s", b"y", 0)))
    monkeypatch.setattr(StreamMachine, "apply_commands", broken)
    result = answers(node.run(fx.Propose(4, 1, Append("b/s", b"z", 0)), fx.Read(5, 1, ReadAt("b/s", 0, 1))))
    assert sorted(result) == [2, 3, 4, 5]
    assert all(isinstance(result[token], OutcomeUnknown) for token in (2, 3))


def grown(applied: int) -> Node:
    """A leader whose old entries left memory, with a follower that needs them."""
    options = HostOptions(
        raft=RaftOptions(election_ticks=10, heartbeat_ticks=2, log_memory_bytes_max=0),
        group=GroupOptions(command_bytes_max=1_000, snapshots=SnapshotOptions(tail_entries=0)),
    )
    node = Node(options)
    node.lead(1, 7)
    node.run(fx.Propose(1, 1, Create("b/s", "text/plain", 0)))
    for number in range(applied):
        node.run(fx.Propose(10 + number, 1, Append("b/s", b"%d" % number, 0)))
    node.run(fx.Route(9, 2, OTHER.incarnation))
    return node


def reads_of(effects: list[fx.Effect]) -> list[fx.WalRead]:
    return [effect for effect in effects if isinstance(effect, fx.WalRead)]


def test_an_unreadable_place_in_the_log_is_tried_once_a_tick_and_then_replaced_by_a_snapshot() -> None:
    node = grown(5)
    node.run(fx.ChangeMembers(2, 1, (7,), (9,)))
    effects = node.run(frame([(1, AppendAnswer(7, 9, node.host.groups[1].raft.term, False, node.host.groups[1].raft.log.last_index, 0, 0))]))
    wanted = reads_of(effects)
    assert len(wanted) == 1
    seen: list[str] = []
    for _ in range(node.host.options.read_tries_max):
        failed = node.run(fx.WalBytes(wanted[-1].request, b"", "EIO"))
        assert reads_of(failed) == [], "not in the same turn: that would be a loop"
        ticked = node.run(fx.Tick())
        wanted += reads_of(ticked)
        seen += kinds(failed + ticked)
    assert seen.count("SnapshotOpen") == 1, "what is applied is in the machine: a snapshot makes the entries unnecessary"
    assert not node.host.groups[1].fenced


def test_a_confirmed_read_is_not_kept_for_ever_by_a_replica_that_lost_its_leader() -> None:
    node = Node()
    node.run(fx.Route(9, 2, OTHER.incarnation), fx.ReplicaCreate(1, 7, Configuration((7, 8, 9))))
    node.run(frame([(1, Heartbeat(7, 9, 1, 0, 0))]))
    asked = node.run(fx.Read(1, 1, ReadAt("b/s", 0, 1)))
    ask = envelope.decode(next(effect.data for effect in asked if isinstance(effect, fx.SendFrame)), OTHER, 1)[3][0][1]
    assert isinstance(ask, ReadIndexAsk)
    assert answers(node.run(frame([(1, ReadIndexAnswer(7, 9, 1, ask.request, 50))]))) == {}, "index 50 is not applied here yet"
    result: dict[int, Any] = {}
    for _ in range(30):
        result.update(answers(node.run(fx.Tick())))
    assert isinstance(result[1], ReadUnavailable)


def test_a_read_on_a_quiet_leader_is_answered_with_the_round_and_not_with_the_next_heartbeat() -> None:
    """The answer to a round looks like that to any heartbeat of an idle group, which is passed over quickly: but somebody waits for this one."""
    node = Node()
    node.run(fx.Route(9, 2, OTHER.incarnation), fx.ReplicaCreate(1, 7, Configuration((7, 9))))

    def letters(effects: list[fx.Effect]) -> list[Any]:
        frames = [effect.data for effect in effects if isinstance(effect, fx.SendFrame)]
        return [m for data in frames for _, m in envelope.decode(data, OTHER, 1)[3]]

    term, seen = 0, []
    while not term:
        seen = letters(node.run(fx.Tick()))
        term = next((m.term for m in seen if isinstance(m, PreVote)), 0)
    node.run(frame([(1, PreVoteAnswer(7, 9, term, True))]))
    seen = letters(node.run(frame([(1, VoteAnswer(7, 9, term, True))])))
    assert any(isinstance(m, AppendMessage) for m in seen)
    node.run(frame([(1, AppendAnswer(7, 9, term, True, 1))]))
    (asked,) = [m for m in letters(node.run(fx.Read(1, 1, ReadAt("b/s", 0, 1)))) if isinstance(m, Heartbeat)]
    assert 1 in answers(node.run(frame([(1, HeartbeatAnswer(7, 9, term, asked.read_round))])))


def test_a_snapshot_that_is_being_sent_is_not_deleted_by_a_newer_one() -> None:
    node = grown(3)
    key = next(effect.key for effect in node.run(fx.TakeSnapshot(1)) if isinstance(effect, fx.SnapshotOpen))
    node.run(fx.SnapshotAppended(key))
    node.run(fx.SnapshotSaved(key, 100))
    node.run(fx.ChangeMembers(2, 1, (7,), (9,)))
    raft = node.host.groups[1].raft
    effects = node.run(frame([(1, AppendAnswer(7, 9, raft.term, False, raft.log.last_index, 0, 0))]))
    assert [effect.key for effect in effects if isinstance(effect, fx.SnapshotRead)] == [key]
    node.run(fx.Propose(3, 1, Append("b/s", b"more", 0)))
    newer = next(effect.key for effect in node.run(fx.TakeSnapshot(1)) if isinstance(effect, fx.SnapshotOpen))
    node.run(fx.SnapshotAppended(newer))
    deleted = [effect for effect in node.run(fx.SnapshotSaved(newer, 100)) if isinstance(effect, fx.SnapshotsDelete)]
    assert all(effect.keep is not None and effect.keep <= key for effect in deleted)


def test_files_of_replicas_that_are_gone_are_deleted_at_start() -> None:
    host = Host(ME, OPTIONS, OpenedMachine, Random(1), 2, Wal(ME, WalOptions(segment_bytes=4 << 20)))
    assert fx.SnapshotsDelete(3, 5, None) in host.start([], {}, {(3, 5): [fx.SnapshotKey(3, 5, 9, 1)]})
