"""A few Raft replicas on one desk: real `Raft` objects, a disk and a network that do only what a script says. interpreter.py moves them.

Disk: what a turn persists is a batch. A batch counts only when it is synced; what waits for it (votes, acknowledgements) leaves only then.
Network: one list of messages in the order they were sent; nothing is lost, doubled or late unless the script wants it.
After every turn the laws of Raft are checked over all replicas (`Laws`), whatever the script goes on to compare."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft import membership
from anabranch_node.core.raft.errors import InvariantBroken
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import Append, AppendAnswer, Message
from anabranch_node.core.raft.raft import Chance, Raft, RaftOptions, Role
from anabranch_node.core.raft.records import EntriesAppended, HardState, LogTruncated, Record, SnapshotMark


class FixedChance:
    """Replica 3 always waits three ticks longer than the shortest timeout, so a reader can tell who wakes first."""

    def __init__(self, replica: int) -> None:
        self.replica = replica

    def randrange(self, start: int, stop: int, /) -> int:
        return min(start + self.replica, stop - 1)


# --- how things are written ------------------------------------------------------------------------------------------------------


def show_config(config: Configuration) -> str:
    def ids(replicas: tuple[int, ...]) -> str:
        return ",".join(map(str, replicas))

    joint = f" and {ids(config.old_voters)}" if config.joint else ""
    learners = f" learners {ids(config.learners)}" if config.learners else ""
    return "{" + (ids(config.voters) or "nobody") + joint + learners + "}"


def show_entry(entry: bytes | None) -> str:
    if entry is None:
        return "(in the WAL)"
    version, payload = entries_of.version_of(entry), entries_of.payload_of(entry)
    if version == entries_of.NOOP:
        return "noop"
    if version == entries_of.CONFIG:
        return show_config(membership.decode(payload))
    text = payload.decode()
    return f"{text[0]}*{len(text)}" if len(text) > 12 else text


def show_message(m: Message) -> str:
    words = []
    for name, value in zip(m._fields, m, strict=True):
        if name in ("to", "src", "block"):
            continue
        if name in ("prev_index", "prev_term", "last_index", "last_term"):
            if name.endswith("index"):
                words.append(f"{name.removesuffix('_index')}={value}/{m[m._fields.index(name) + 1]}")
        elif isinstance(value, bool):
            words.append(name if value else f"not-{name}")
        elif not (name == "read_round" and value == 0) and not (name.startswith("hint") and m.success):  # type: ignore[union-attr]
            words.append(f"{name.replace('_', '-')}={value}")
    if isinstance(m, Append):
        entries = enumerate(entries_of.split(m.block), m.prev_index + 1)
        words.append("[" + " ".join(f"{index}/{entries_of.term_of(entry)}:{show_entry(entry)}" for index, entry in entries) + "]")
    return f"{m.src}->{m.to} {kind_of(m)} {' '.join(words)}"


def kind_of(m: Message) -> str:
    """`HeartbeatAnswer` -> `heartbeat-answer`."""
    return "".join("-" + letter.lower() if letter.isupper() else letter for letter in type(m).__name__).lstrip("-")


# --- one replica and its disk ----------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    """What one turn wrote, and what waits for it."""

    records: list[Record]
    letters: list[Message]
    position: tuple[int, int, int] | None  # the log's end and the term when it was written; None: nothing to tell Raft


@dataclass
class Replayed:
    """What a restart finds: the durable records, one after the other, as records.py says they are to be read."""

    hard: HardState
    mark: SnapshotMark
    entries: list[bytes]

    @property
    def last_index(self) -> int:
        return self.mark.first_index + len(self.entries) - 1


def replay(records: list[Record]) -> Replayed:
    hard, mark, entries = HardState(0, 0, 0), SnapshotMark(0, 0, membership.encode(Configuration()), 1, 0), list[bytes]()
    for record in records:
        last_index = mark.first_index + len(entries) - 1
        if isinstance(record, HardState):
            hard = record
        elif isinstance(record, EntriesAppended):
            assert record.first_index == last_index + 1, (record, last_index)
            entries.extend(record.entries)
        elif isinstance(record, LogTruncated):
            del entries[record.from_index - mark.first_index :]
        elif isinstance(record, SnapshotMark):
            entries = entries[record.first_index - mark.first_index :] if last_index >= record.first_index else []
            mark = record
    return Replayed(hard, mark, entries)


@dataclass
class Replica:
    id: int
    options: RaftOptions
    durable: list[Record]
    boot: int = 0
    waiting: list[Batch] = field(default_factory=list)
    sync_held: bool = False
    paused: bool = False
    raft: Raft | None = None  # None: crashed, or fenced
    applied: list[tuple[int, bytes]] = field(default_factory=list)
    loads: list[tuple[int, int]] = field(default_factory=list)  # wanted from the WAL: (replica, first index)
    snapshots: list[int] = field(default_factory=list)  # replicas that want a snapshot from us
    chance: Chance | None = None  # None: FixedChance

    def start(self) -> Raft:
        found = replay(self.durable)
        self.boot += 1
        self.applied = []
        self.raft = Raft(self.id, self.options, self.chance or FixedChance(self.id), self.boot, found.hard, found.mark, found.entries)
        return self.raft

    def stop(self, records_kept: int = 0) -> None:
        """Power is lost. What was written and not synced is gone, but for the first `records_kept` records."""
        self.durable.extend([record for batch in self.waiting for record in batch.records][:records_kept])
        self.raft, self.waiting, self.loads, self.snapshots = None, [], [], []

    def write(self) -> None:
        """The end of a turn: hand the records to the disk."""
        raft = self.raft
        assert raft is not None
        if raft.persist or raft.send_after_sync:
            position = (raft.log.last_index, raft.log.last_term, raft.term) if raft.persist else None
            self.waiting.append(Batch(raft.persist, raft.send_after_sync, position))
            raft.persist, raft.send_after_sync = [], []


# --- all of them -----------------------------------------------------------------------------------------------------------------


class LawBroken(Exception):
    """Not a difference to the expected text: something that must never be."""


class Laws:
    """Election safety, leader completeness, log matching, state machine safety (the paper's Figure 3), over what all replicas did so far."""

    def __init__(self) -> None:
        self.leader_of: dict[int, int] = {}
        self.committed: dict[int, bytes] = {}

    def check_applied(self, replica: int, index: int, entry: bytes) -> None:
        first = self.committed.setdefault(index, entry)
        if first != entry:
            raise LawBroken(f"{replica} applied {show_entry(entry)} at {index}, where {show_entry(first)} was applied before")

    def check(self, rafts: list[Raft]) -> None:
        for raft in rafts:
            if raft.role is Role.LEADER:
                first = self.leader_of.setdefault(raft.term, raft.id)
                if first != raft.id:
                    raise LawBroken(f"{first} and {raft.id} both led term {raft.term}")
                self._check_complete(raft)
            terms = [raft.log.prev_term, *raft.log.terms]
            if terms != sorted(terms):
                raise LawBroken(f"{raft.id}: terms go down: {terms} from index {raft.log.first_index - 1}")
        for one in rafts:
            for other in rafts:
                if one.id < other.id:
                    self._check_matching(one, other)

    def _check_complete(self, leader: Raft) -> None:
        for index, entry in self.committed.items():
            if leader.term == max(self.leader_of) and index >= leader.log.first_index:
                if not leader.log.matches(index, entries_of.term_of(entry)):
                    raise LawBroken(f"{leader.id} leads term {leader.term} without the committed entry {index}: {show_entry(entry)}")

    def _check_matching(self, one: Raft, other: Raft) -> None:
        first = max(one.log.first_index, other.log.first_index)
        common = range(min(one.log.last_index, other.log.last_index), first - 1, -1)
        met = False
        for index in common:
            met = met or one.log.term_at(index) == other.log.term_at(index)
            if met and one.log.term_at(index) != other.log.term_at(index):
                raise LawBroken(f"logs of {one.id} and {other.id} meet above {index} and differ at {index}")


def _step(raft: Raft, m: Message) -> None:
    raft.step(m)


def _synced(raft: Raft, position: tuple[int, int, int]) -> None:
    raft.synced(*position)


class Cluster:
    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas = {replica.id: replica for replica in replicas}
        self.messages: list[Message] = []
        self.late: list[Message] = []
        self.cuts: set[tuple[int, int]] = set()
        self.laws = Laws()
        self.events: list[str] = []
        self.read_names: list[str] = []

    def live(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.raft is not None and not replica.paused]

    def raft(self, replica: int) -> Raft:
        raft = self.replicas[replica].raft
        if raft is None:
            raise ValueError(f"replica {replica} is not running")
        return raft

    def say(self, replica: int, text: str) -> None:
        self.events.append(f"{replica}: {text}")

    def turn(self, replica: Replica, action: Callable[[Raft], object]) -> None:
        """One turn of one replica: let it act, flush, write; then sync until nothing waits, unless that is held back."""
        self._act(replica, action)
        while replica.waiting and not replica.sync_held:
            self.sync(replica)

    def _act(self, replica: Replica, action: Callable[[Raft], object]) -> None:
        raft = replica.raft
        assert raft is not None
        before = (raft.role, raft.term, raft.config)
        try:
            action(raft)
            raft.flush()
        except (InvariantBroken, AssertionError) as broken:
            replica.stop()
            self.say(replica.id, f"FENCED, {broken}")
            return
        self._report(raft, before)
        for record in raft.persist:
            if isinstance(record, LogTruncated):
                self.say(raft.id, f"truncates from {record.from_index}")
        self._hand_out(replica, raft)
        self._send(raft.send_now)
        raft.send_now = []
        replica.write()
        self.laws.check([other.raft for other in self.replicas.values() if other.raft is not None])

    def sync(self, replica: Replica) -> None:
        """Everything written so far is durable now: tell Raft, and let go what waited for it."""
        for _ in range(len(replica.waiting)):
            if replica.raft is None:
                return
            batch = replica.waiting.pop(0)
            replica.durable.extend(batch.records)
            if batch.position is not None:
                self._act(replica, partial(_synced, position=batch.position))
            self._send([m for m in batch.letters if m.to != replica.id])
            for m in batch.letters:
                if m.to == replica.id and replica.raft is not None:
                    self._act(replica, partial(_step, m=m))

    def deliver(self, m: Message) -> None:
        """It arrives, unless the way is cut or nobody is there."""
        replica = self.replicas.get(m.to)
        if replica is not None and replica.raft is not None and (m.src, m.to) not in self.cuts:
            self.turn(replica, partial(_step, m=m))

    def run_until_quiet(self) -> None:
        for _ in range(2000):
            m = next((m for m in self.messages if m.to not in self.replicas or not self.replicas[m.to].paused), None)
            if m is None:
                return
            self.messages.remove(m)
            self.deliver(m)
        raise LawBroken(f"no end of messages; the next ones: {[show_message(m) for m in self.messages[:4]]}")

    def _send(self, messages: list[Message]) -> None:
        self.messages.extend(m for m in messages if (m.src, m.to) not in self.cuts)

    def _report(self, raft: Raft, before: tuple[Role, int, Configuration]) -> None:
        role, term, config = before
        if (raft.role, raft.term) != (role, term):
            self.say(raft.id, f"{raft.role.value} in term {raft.term}")
        if raft.config != config:
            self.say(raft.id, f"configuration {show_config(raft.config)}")

    def _hand_out(self, replica: Replica, raft: Raft) -> None:
        if raft.committed:
            for index, entry in raft.committed:
                self.laws.check_applied(raft.id, index, entry)
            replica.applied.extend(raft.committed)
            self.say(raft.id, "applies " + " ".join(f"{index}:{show_entry(entry)}" for index, entry in raft.committed))
        for token, index in raft.read_states:
            self.say(raft.id, f"read {self.read_names[token]} may be served at {index}")
        for token in raft.read_failures:
            self.say(raft.id, f"read {self.read_names[token]} failed, ask again")
        for other in raft.snapshots_wanted:
            self.say(raft.id, f"wants to send a snapshot to {other}")
        for other, index in raft.loads_wanted:
            self.say(raft.id, f"wants entries from {index} read back from the WAL for {other}")
        replica.loads.extend(raft.loads_wanted)
        replica.snapshots.extend(raft.snapshots_wanted)
        raft.committed, raft.read_states, raft.read_failures, raft.snapshots_wanted, raft.loads_wanted = [], [], [], [], []

    def installed(self, raft: Raft) -> None:
        """What the host says after an install: the leader hears what we hold now, once it is durable."""
        if raft.leader and raft.role is not Role.LEADER:
            raft.send_after_sync.append(AppendAnswer(raft.leader, raft.id, raft.term, True, raft.log.committed))
