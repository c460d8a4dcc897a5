"""Deletes of buckets, carried out by the leader of the meta group: a fence for every group, then the decision that their counts make (DESIGN 9).

Before us: cross.py calls tick(). We look at what the machine led here says is being deleted; whatever we remember may be lost with the node, and the
next leader begins again. So a fence may come twice, late, or from two who both believe that they lead: its receiver does not mind, and a decision
names the delete that it decides. After us: service.py carries each command to its group. Not here: the client that waits (buckets.py).

A bucket with streams is restored at the first count that is not zero. A fence that is still under way then closes the bucket in its group once more,
and the next create there opens it again."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anabranch_node.core.cluster.commands import BucketDeleted, BucketRestored
from anabranch_node.core.cluster.machine import MetaMachine
from anabranch_node.core.raft.raft import Role
from anabranch_node.core.stream.commands import BucketFence
from anabranch_node.core.stream.results import BucketFenced
from anabranch_proto.ids import META_GROUP

if TYPE_CHECKING:
    from anabranch_node.service.service import Service

REPEAT_MS: Final = 1_000
"""What was sent and brought no result is sent again after this, and after its answer."""
ROUNDS_MAX: Final = 16
"""Buckets that are deleted at once; each asks every group. The others wait."""


class _Round:
    """Of one delete. Keyed by group; the decision goes to the meta group."""

    __slots__ = ("counts", "sent_ms", "under_way")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.sent_ms: dict[int, int] = {}
        self.under_way: set[int] = set()


class BucketDeletes:
    def __init__(self, service: "Service") -> None:
        self._service = service
        self._rounds: dict[tuple[str, int], _Round] = {}  # by bucket and since when it is being deleted

    @property
    def under_way(self) -> int:
        return sum(len(round.under_way) for round in self._rounds.values())

    def tick(self, now_ms: int) -> None:
        meta = self._service.host.groups.get(META_GROUP)
        leads = meta is not None and not meta.fenced and meta.raft.role is Role.LEADER
        machine = meta.machine if meta is not None and leads else None
        deleting = machine.deleting()[:ROUNDS_MAX] if isinstance(machine, MetaMachine) else []
        routing = self._service.routing
        if not deleting or routing is None or not routing.ready:
            self._rounds.clear()
            return
        self._rounds = {(bucket.name, bucket.since_index): self._rounds.get((bucket.name, bucket.since_index)) or _Round() for bucket in deleting}
        for (bucket, index), round in self._rounds.items():
            if any(round.counts.values()):
                self._send(now_ms, round, META_GROUP, BucketRestored(bucket, index, 0))
                continue
            missing = [group for group in routing.groups if group not in round.counts]
            for group in missing:
                self._send(now_ms, round, group, BucketFence(bucket, index, 0))
            if not missing:
                self._send(now_ms, round, META_GROUP, BucketDeleted(bucket, index, 0))

    def _send(self, now_ms: int, round: _Round, group: int, command: BucketFence | BucketDeleted | BucketRestored) -> None:
        if group in round.under_way or now_ms - round.sent_ms.get(group, -REPEAT_MS) < REPEAT_MS:
            return
        round.sent_ms[group] = now_ms
        round.under_way.add(group)
        self._service.ask_group(group, True, command, partial(_told, round, group))


def _told(round: _Round, group: int, result: Any) -> None:
    round.under_way.discard(group)
    if isinstance(result, BucketFenced):
        round.counts[group] = result.streams
