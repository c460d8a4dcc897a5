"""The whole vocabulary between the pure engine and the world: events in, effects out, on one page.

`Host.turn(now_ms, events) -> effects`. drivers/ (or the simulator) performs effects and reports events; neither side knows more of the other.
Disk effects of one node are performed in the order given; a ticket is synced only when everything before it is, too."""

from typing import Any, NamedTuple

from msgspec import Struct

from anabranch_node.core.raft.membership import Configuration


class SnapshotKey(NamedTuple):
    """One snapshot file of one local replica. Ordered by (group, replica, index, term)."""

    group: int
    replica: int
    index: int  # type: ignore[assignment]
    term: int


# --- effects: the shared log -----------------------------------------------------------------------------------------------------


class SegmentCreate(Struct, frozen=True, tag=True):
    """Sync all earlier writes, then make a full-size zero-filled file that starts with `data` (header and checkpoint) durable, then give it its name.

    So a segment that has a name has a header, and every segment but the newest is wholly durable: only the newest can have a torn tail."""

    segment: int
    data: bytes


class SegmentDelete(Struct, frozen=True, tag=True):
    """Nothing in this segment is live."""

    segment: int


class WalWrite(Struct, frozen=True, tag=True):
    """Write, then fdatasync; answer Synced(ticket). Several queued writes may share one sync."""

    ticket: int
    segment: int
    offset: int
    data: bytes


class SyncMark(Struct, frozen=True, tag=True):
    """The log is idle and everything before this position is durable: note it in the side file, so that a wiped tail is noticed."""

    segment: int
    offset: int


class WalRead(Struct, frozen=True, tag=True):
    """Answer WalBytes. For followers that need entries which are no longer in memory, and for copying live entries forward."""

    request: int
    segment: int
    offset: int
    length: int


# --- effects: snapshots ----------------------------------------------------------------------------------------------------------


class SnapshotOpen(Struct, frozen=True, tag=True):
    """Start a temporary file with this header (wal/snapshot_file.py). Any earlier unfinished file of the same key is dropped."""

    key: SnapshotKey
    header: bytes


class SnapshotAppend(Struct, frozen=True, tag=True):
    """Compress and append one chunk of machine state; answer SnapshotAppended. One is under way at a time per key."""

    key: SnapshotKey
    chunk: bytes


class SnapshotFinish(Struct, frozen=True, tag=True):
    """Trailer, fsync, rename to its final name, fsync the directory; answer SnapshotSaved."""

    key: SnapshotKey


class SnapshotRead(Struct, frozen=True, tag=True):
    """A piece of the finished file as it lies on disk, for a follower; answer SnapshotBytes."""

    request: int
    key: SnapshotKey
    offset: int
    length: int


class SnapshotReceive(Struct, frozen=True, tag=True):
    """A piece of a leader's file, to be kept under `key`. `size` is the whole file's. Answer SnapshotReceived; when the last byte is there the
    file is verified, synced, renamed, and the answer is SnapshotVerified (or SnapshotFailed, and the pieces are dropped)."""

    key: SnapshotKey
    offset: int
    data: bytes
    size: int


class SnapshotLoad(Struct, frozen=True, tag=True):
    """Read and verify a finished file; answer SnapshotLoaded or SnapshotFailed."""

    key: SnapshotKey


class SnapshotsDelete(Struct, frozen=True, tag=True):
    """Delete the replica's snapshot files, finished or not, that are older than `keep` (None: all of them). Never a newer one: its mark may be
    on its way to the disk already."""

    group: int
    replica: int
    keep: SnapshotKey | None


# --- events ----------------------------------------------------------------------------------------------------------------------


class Synced(Struct, frozen=True, tag=True):
    """Every WalWrite up to and including this ticket is durable."""

    ticket: int


class WalBytes(Struct, frozen=True, tag=True):
    request: int
    data: bytes
    error: str = ""


class SnapshotAppended(Struct, frozen=True, tag=True):
    key: SnapshotKey


class SnapshotSaved(Struct, frozen=True, tag=True):
    key: SnapshotKey
    size: int


class SnapshotBytes(Struct, frozen=True, tag=True):
    request: int
    key: SnapshotKey
    offset: int
    data: bytes
    size: int


class SnapshotReceived(Struct, frozen=True, tag=True):
    """`have` bytes of the file are held, from its start; the sender goes on there."""

    key: SnapshotKey
    have: int


class SnapshotVerified(Struct, frozen=True, tag=True):
    key: SnapshotKey


class SnapshotLoaded(Struct, frozen=True, tag=True):
    key: SnapshotKey
    header: bytes
    chunks: list[bytes]


class SnapshotFailed(Struct, frozen=True, tag=True):
    """The file could not be written, read or verified. Nothing depends on it yet; the next try starts over."""

    key: SnapshotKey
    reason: str


class DiskFailed(Struct, frozen=True, tag=True):
    """A write or an fsync of the shared log failed. What is on the disk is unknown now, so the node stops; it never tries the same fsync again."""

    reason: str


class DiskSpace(Struct, frozen=True, tag=True):
    """Reported when it changes: how many zero-filled spare segments stand ready, and the free bytes of the file system."""

    spare_segments: int
    free_bytes: int


# --- events and effects: peers ---------------------------------------------------------------------------------------------------


class Route(Struct, frozen=True, tag=True):
    """That replica lives on that node. Corrected by use, never trusted for safety: a message to the wrong place is refused there."""

    replica: int
    node: int
    incarnation: int


class FrameReceived(Struct, frozen=True, tag=True):
    """Bytes from the link to `node`; nothing in them is trusted before engine/envelope.py has checked them."""

    node: int
    data: bytes


class PeerLost(Struct, frozen=True, tag=True):
    """The connection to that node broke."""

    node: int


class SendFrame(Struct, frozen=True, tag=True):
    """One frame to one peer. `bulk` frames (entries, snapshot pieces) keep their order among themselves and never delay the others."""

    node: int
    bulk: bool
    data: bytes


class LetterReceived(Struct, frozen=True, tag=True):
    """A peer's question or answer that is not Raft's: for engine/forward.py."""

    node: int
    incarnation: int
    group: int
    letter: Any


class PeerRefused(Struct, frozen=True, tag=True):
    """A frame was not for us or not ours to read; it was dropped whole. For the log and the alarm."""

    node: int
    reason: str


# --- events and effects: time, requests, replicas -------------------------------------------------------------------------------


class Tick(Struct, frozen=True, tag=True):
    """One tick of the node (50 ms by default)."""


class Propose(Struct, frozen=True, tag=True):
    """A command for a group; answered by Answer(token, result or failure)."""

    token: int
    group: int
    command: Any


class Read(Struct, frozen=True, tag=True):
    """A linearizable query of this replica; answered by Answer(token, what the machine says, or a failure)."""

    token: int
    group: int
    query: Any


class Answer(Struct, frozen=True, tag=True):
    token: int
    result: Any


class ReplicaCreate(Struct, frozen=True, tag=True):
    """Start a replica that has never existed. `config` is empty for one that will be added as a learner. A fenced or retired replica of the
    same group on this node is destroyed by this: a lost log is one lost id, never an id revived."""

    group: int
    replica: int
    config: Configuration
    campaign: bool = False
    """Run for leader at once: the one that a new group prefers."""


class ReplicaDestroy(Struct, frozen=True, tag=True):
    """The replica left its group: note that durably and forget its data."""

    group: int
    replica: int


class ChangeMembers(Struct, frozen=True, tag=True):
    """Answered when the change is in the log (Answer(token, Accepted)) or refused; its end is seen in the configuration."""

    token: int
    group: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]


class TransferLeadership(Struct, frozen=True, tag=True):
    token: int
    group: int
    target: int


class TakeSnapshot(Struct, frozen=True, tag=True):
    group: int


class GroupFenced(Struct, frozen=True, tag=True):
    """An alarm: this replica takes no part any more. It does not vote, acknowledge or answer; it is rebuilt under a new replica id."""

    group: int
    replica: int
    reason: str


class TurnAgain(Struct, frozen=True, tag=True):
    """There is more to do than one turn should take: turn again soon, with whatever has come in meanwhile."""


class StopNode(Struct, frozen=True, tag=True):
    """The node cannot keep its promises any more and must end now, without writing anything."""

    reason: str


DiskEffect = (
    SegmentCreate
    | SegmentDelete
    | WalWrite
    | SyncMark
    | WalRead
    | SnapshotOpen
    | SnapshotAppend
    | SnapshotFinish
    | SnapshotRead
    | SnapshotReceive
    | SnapshotLoad
    | SnapshotsDelete
)
Effect = DiskEffect | SendFrame | LetterReceived | PeerRefused | Answer | GroupFenced | StopNode
DiskEvent = (
    Synced
    | WalBytes
    | SnapshotAppended
    | SnapshotSaved
    | SnapshotBytes
    | SnapshotReceived
    | SnapshotVerified
    | SnapshotLoaded
    | SnapshotFailed
    | DiskFailed
    | DiskSpace
)
Event = (
    DiskEvent
    | Route
    | FrameReceived
    | PeerLost
    | Tick
    | Propose
    | Read
    | ReplicaCreate
    | ReplicaDestroy
    | ChangeMembers
    | TransferLeadership
    | TakeSnapshot
)
