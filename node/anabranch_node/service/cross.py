"""What this node owes other groups because it leads a group: looked up from the state of its machines at every tick, sent until it is acknowledged.

Before us: service.py calls tick(). A Work looks at what the machines led here hold, and says what must be sent; Errands sees that nothing is sent
twice within a second and that not too much is under way. After us: service.py carries each errand to its group, wherever that lives.
Nothing here is a promise: all of it can be lost with the node, and the next leader looks at the same state and begins again. So every command that is
sent may come twice, late, or from two who both believe that they lead; its receiver must not mind.
Not here: what a client waits for (buckets.py)."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from anabranch_node.core.cluster.commands import BucketDeleted, BucketRestored
from anabranch_node.core.cluster.machine import MetaMachine
from anabranch_node.core.cluster.routing import Routing
from anabranch_node.core.raft.raft import Role
from anabranch_node.core.stream.commands import AckOutbox, BucketFence, ResolveFork, SettlePin, Unpin
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.results import BucketFenced, ForkResolved, Unpinned
from anabranch_node.engine.host import Host
from anabranch_proto.ids import META_GROUP

REPEAT_MS: Final = 1_000
"""What was sent and changed nothing is sent again after this."""
ERRANDS_MAX: Final = 4_096
"""Under way, or sent within the last second. More waits for a later tick."""
ROUNDS_MAX: Final = 16
"""Buckets that are deleted at once; each asks every group."""

PIN_SETTLE_MS: Final = 2_000
"""By then a fork is usually made: asking its group costs that group an entry in its log."""

Then = Callable[[Any], None]
AskGroup = Callable[[int, bool, Any, Then], None]


class Errands:
    """Commands on their way to other groups, each under a key that says what it is about."""

    def __init__(self, ask: AskGroup) -> None:
        self._ask = ask
        self._sent_ms: dict[Hashable, int] = {}
        self._under_way: set[Hashable] = set()
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def now_ms(self) -> int:
        return self._now_ms

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        rested = [key for key, sent_ms in self._sent_ms.items() if now_ms - sent_ms >= REPEAT_MS and key not in self._under_way]
        for key in rested:
            del self._sent_ms[key]

    def send(self, key: Hashable, group: int, command: Any, then: Then | None = None) -> None:
        """Unless that is under way, or was within the last second. `then` hears what became of it, also if nothing did."""
        if key in self._sent_ms or len(self._sent_ms) >= ERRANDS_MAX:
            return
        self._sent_ms[key] = self._now_ms
        self._under_way.add(key)
        self._ask(group, True, command, partial(self._back, key, then))

    def _back(self, key: Hashable, then: Then | None, result: Any) -> None:
        self._under_way.discard(key)
        if then is not None:
            then(result)


class Work(Protocol):
    def step(self, errands: Errands, routing: Routing) -> None:
        """Look, and send what is due. Called at every tick, so it is cheap when there is nothing."""


class Cross:
    def __init__(self, host: Host, ask: AskGroup) -> None:
        self.errands = Errands(ask)
        self._works: list[Work] = [BucketDeletes(host), Outboxes(host), PendingPins(host)]

    def tick(self, now_ms: int, routing: Routing) -> None:
        self.errands.tick(now_ms)
        for work in self._works:
            work.step(self.errands, routing)


class BucketDeletes:
    """The leader of the meta group carries out the deletes of buckets: a fence for every group, then the decision that their counts make.

    A bucket with streams is restored at the first count that is not zero. A fence that is still under way then closes the bucket in its group once
    more, and the next create there opens it again."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rounds: dict[tuple[str, int], dict[int, int]] = {}  # (bucket, since when it is being deleted) -> group -> streams of it there

    def step(self, errands: Errands, routing: Routing) -> None:
        meta = self._host.groups.get(META_GROUP)
        leads = meta is not None and not meta.fenced and meta.raft.role is Role.LEADER
        machine = meta.machine if meta is not None and leads else None
        deleting = machine.deleting()[:ROUNDS_MAX] if isinstance(machine, MetaMachine) else []
        if not deleting or not routing.ready:
            self._rounds.clear()
            return
        self._rounds = {(bucket.name, bucket.since_index): self._rounds.get((bucket.name, bucket.since_index), {}) for bucket in deleting}
        for (bucket, index), counts in self._rounds.items():
            if any(counts.values()):
                errands.send(("decide", bucket, index), META_GROUP, BucketRestored(bucket, index, 0))
                continue
            missing = [group for group in routing.groups if group not in counts]
            for group in missing:
                errands.send(("fence", bucket, index, group), group, BucketFence(bucket, index, 0), partial(_counted, counts, group))
            if not missing:
                errands.send(("decide", bucket, index), META_GROUP, BucketDeleted(bucket, index, 0))


def _counted(counts: dict[int, int], group: int, result: Any) -> None:
    if isinstance(result, BucketFenced):
        counts[group] = result.streams


def _led(host: Host) -> Iterator[tuple[int, StreamMachine]]:
    """Groups of streams that are led here, with their machines."""
    for group in host.groups.values():
        machine = group.machine
        if group.raft.role is Role.LEADER and not group.fenced and isinstance(machine, StreamMachine):
            yield group.id, machine


class Outboxes:
    """Forks that are gone: their sources' groups need no longer keep anything for them."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def step(self, errands: Errands, routing: Routing) -> None:
        if not routing.ready:
            return
        for group, machine in _led(self._host):
            if machine.outbox:
                for number, owed in list(machine.outbox.items()):
                    command = Unpin(owed.stream, owed.incarnation, owed.uuid, 0)
                    errands.send(("unpin", group, number), routing.group_of(owed.stream), command, partial(_acknowledge, errands, group, number))


def _acknowledge(errands: Errands, group: int, number: int, result: Any) -> None:
    if isinstance(result, Unpinned):
        errands.send(("acknowledge", group, number), group, AckOutbox([number], 0))


class PendingPins:
    """Pins of which their group does not know whether the fork was ever made: whoever made it may have died in between. Its group is asked."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._seen: dict[tuple[int, str], int] = {}  # (group, uuid) -> since when it is pending, as this leader saw it

    def step(self, errands: Errands, routing: Routing) -> None:
        if not routing.ready:
            return
        pending: set[tuple[int, str]] = set()
        for group, machine in _led(self._host):
            for stream, incarnation, uuid, fork in machine.pending_pins():
                pending.add((group, uuid))
                if errands.now_ms - self._seen.setdefault((group, uuid), errands.now_ms) >= PIN_SETTLE_MS:
                    settle = partial(_settle, errands, group, SettlePin(stream, incarnation, uuid, False, 0))
                    errands.send(("resolve", group, uuid), routing.group_of(fork), ResolveFork(fork, uuid, 0), settle)
        if len(self._seen) > len(pending):
            self._seen = {key: since for key, since in self._seen.items() if key in pending}


def _settle(errands: Errands, group: int, settle: SettlePin, result: Any) -> None:
    if isinstance(result, ForkResolved):
        command = SettlePin(settle.stream, settle.incarnation, settle.uuid, result.alive, 0)
        errands.send(("settle", group, settle.uuid), group, command)
