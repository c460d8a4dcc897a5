"""Random histories of the shared log: whatever was synced comes back after any crash, and nothing that was never written."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_node.core.raft.records import Destroyed, EntriesAppended, HardState, LogTruncated, Record, SnapshotMark
from anabranch_node.wal.options import WalOptions
from tests.unit.wal_disk import Bench, Model, command, replicas_of


class History:
    """A log under random use. Knows every record in order, and how many of them must survive."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        options = WalOptions(
            segment_bytes=rng.choice([6144, 8192, 16384]),
            segments_live_max=rng.randint(2, 5),
            copy_forward_bytes_max=rng.choice([0, 300, 1024, 4096]),
        )
        self.bench = Bench(options)
        self.records: list[tuple[int, int, Record]] = []
        self.model = Model()
        self.sealed: list[tuple[int, int]] = []  # ticket, records written by then
        self.floor = 0  # records that the last recovery found
        self.next_replica = 1
        self.copied = self.deleted = self.crashes = self.torn = 0

    def log(self, group: int, replica: int, record: Record) -> None:
        if isinstance(record, EntriesAppended):  # a large append may be split between entries, so each counts for itself
            self.records += [(group, replica, EntriesAppended(record.first_index + n, [entry])) for n, entry in enumerate(record.entries)]
        else:
            self.records.append((group, replica, record))
        self.model.apply(group, replica, record)
        self.bench.wal.stage(group, replica, record)

    def step(self) -> None:
        rng = self.rng
        keys = sorted(self.model.replicas)
        if len(keys) < 2 or (len(keys) < 4 and rng.random() < 0.02):
            key = (rng.randint(0, 2), self.next_replica)
            self.next_replica += 1
            self.log(*key, SnapshotMark(0, 0, rng.randbytes(rng.randrange(20)), 1, 0))
            if rng.random() < 0.7:
                self.log(*key, HardState(rng.randint(0, 3), 0, 0))
            return
        key = rng.choice(keys)
        hard, mark, entries = self.model.replicas[key]
        last = self.model.last_index(key)
        choice = rng.random()
        if choice < 0.35:
            many = rng.choice([1, 1, 1, 2, 5])
            self.log(*key, EntriesAppended(last + 1, [command(hard.term, rng.randbytes(rng.choice([0, 20, 200, 900]))) for _ in range(many)]))
        elif choice < 0.42:
            self.log(*key, HardState(hard.term + rng.randrange(2), rng.randrange(5), last))
        elif choice < 0.47 and last > mark.index:
            self.log(*key, LogTruncated(rng.randint(mark.index + 1, last)))
            self.log(*key, HardState(hard.term + 1, 0, 0))
            if rng.random() < 0.5:
                self.log(*key, EntriesAppended(self.model.last_index(key) + 1, [command(hard.term + 1, b"other")]))
        elif choice < 0.55 and last >= mark.first_index:
            index = rng.randint(mark.index, last)
            first = rng.randint(mark.first_index, index + 1)
            before = entries[first - 1 - mark.first_index] if first > mark.first_index else None
            prev_term = int.from_bytes(before[:8], "little") if before else mark.prev_term
            self.log(*key, SnapshotMark(index, hard.term, b"config", first, prev_term))
        elif choice < 0.57:
            index = last + rng.randint(1, 5)
            self.log(*key, SnapshotMark(index, hard.term, b"installed", index + 1, hard.term))
        elif choice < 0.575:
            self.log(*key, Destroyed())
        elif choice < 0.80:
            self.write(self.bench.write(sync=False))
        elif choice < 0.90:
            self.bench.sync(rng.choice([None, 1, 2]))
        elif choice < 0.95:
            before_segments = len(self.bench.wal.segments)
            self.copied += self.bench.maintain(sync=False)
            self.deleted += max(0, before_segments - len(self.bench.wal.segments))
            self.write(self.bench.wal.ticket)
        elif choice < 0.97:
            self.bench.disk.perform(self.bench.wal.idle_mark())
        elif choice < 0.98:
            self.read_back()
        else:
            self.crash()

    def write(self, ticket: int) -> None:
        self.sealed.append((ticket, len(self.records)))

    def crash(self) -> None:
        """Recovery must give the state after some prefix of all records, with at least every synced one in it."""
        self.crashes += 1
        synced = max((count for ticket, count in self.sealed if ticket <= self.bench.wal.synced_ticket), default=self.floor)
        if self.rng.random() < 0.5:
            self.bench.disk.lose_power(self.rng)
        else:
            self.bench.disk.kill_process()
            synced = max([count for _, count in self.sealed] + [self.floor])
        recovered = self.bench.disk.recover()
        assert not [found.fenced for found in recovered.groups.values() if found.fenced]
        model = Model()
        for number, record in enumerate([None, *self.records]):
            if record is not None:
                model.apply(*record)
            if number >= synced and model.replicas == replicas_of(recovered) and model.destroyed == recovered.destroyed:
                break
        else:
            raise AssertionError(f"recovered state is none after at least {synced} of {len(self.records)} records")
        self.torn += recovered.torn is not None
        self.records = self.records[:number]
        self.model = model
        self.floor = number
        self.sealed = []
        self.next_replica += 1
        self.bench = Bench(self.bench.disk.options, self.bench.disk, recovered)
        self.read_back()

    def read_back(self) -> None:
        """Every entry can be read from where the log says it lies."""
        self.write(self.bench.write(sync=False))
        for key, (_, mark, entries) in self.model.replicas.items():
            first = mark.first_index + self.rng.randrange(len(entries)) if entries else mark.first_index
            assert self.bench.entries(*key, first) == entries[first - mark.first_index :]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 500))
def test_what_was_synced_comes_back_after_any_crash(seed: int, steps: int) -> None:
    history = History(random.Random(seed))
    for _ in range(steps):
        history.step()
    history.crash()


def test_the_random_histories_reach_what_they_are_for() -> None:
    total = {"copied": 0, "deleted": 0, "crashes": 0, "torn": 0}
    for seed in range(20):
        history = History(random.Random(seed))
        for _ in range(500):
            history.step()
        for name in total:
            total[name] += getattr(history, name)
    assert min(total.values()) > 20, total
