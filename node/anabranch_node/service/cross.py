"""What groups led here owe other groups, sent until it is acknowledged: outboxes of freed forks, and pins of which nobody knows yet whether their
fork was ever made (DESIGN 9). Asked once per tick by service.py; level-triggered: it looks at applied state and remembers only what is under way.

Every message may come twice, and each receiver takes it so; a leader that dies is followed by one that looks at the same state. Not here: what the
commands do (core/cross)."""

from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch_node.core.raft.raft import Role
from anabranch_node.core.stream.commands import AckOutbox, ResolveFork, SettlePin, Unpin
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.results import ForkResolved, Unpinned

if TYPE_CHECKING:
    from anabranch_node.service.service import Service

PIN_SETTLE_MS = 2_000
"""By then a fork is usually made: asking its group costs that an entry in its log."""
AGAIN_MS = 2_000
"""What brought no result is sent again after this."""
UNDER_WAY_MAX = 256
"""Of one node; the rest waits for the next tick."""


class Cross:
    def __init__(self, service: "Service") -> None:
        self._service = service
        self._under_way: dict[tuple[int, object], int] = {}  # (group, number or uuid) -> when it was sent
        self._seen: dict[tuple[int, str], int] = {}  # (group, uuid) -> since when the pin is pending, as this leader saw it

    def tick(self, uptime_ms: int) -> None:
        for key, sent_ms in list(self._under_way.items()):
            if uptime_ms - sent_ms >= AGAIN_MS:
                del self._under_way[key]
        pending: set[tuple[int, str]] = set()
        for group in self._service.host.groups.values():
            machine = group.machine
            if group.fenced or group.raft.role is not Role.LEADER or not isinstance(machine, StreamMachine):
                continue
            if machine.outbox:
                for number, owed in list(machine.outbox.items()):
                    if self._may_send((group.id, number), uptime_ms):
                        self._ask(owed.stream, Unpin(owed.stream, owed.incarnation, owed.uuid, 0), partial(self._unpinned, group.id, number))
            for stream, incarnation, uuid, fork in machine.pending_pins():
                pending.add((group.id, uuid))
                if uptime_ms - self._seen.setdefault((group.id, uuid), uptime_ms) >= PIN_SETTLE_MS and self._may_send((group.id, uuid), uptime_ms):
                    self._ask(fork, ResolveFork(fork, uuid, 0), partial(self._resolved, group.id, stream, incarnation, uuid))
        if len(self._seen) > len(pending):
            self._seen = {key: since for key, since in self._seen.items() if key in pending}

    def _may_send(self, key: tuple[int, object], uptime_ms: int) -> bool:
        if key in self._under_way or len(self._under_way) >= UNDER_WAY_MAX:
            return False
        self._under_way[key] = uptime_ms
        return True

    def _ask(self, stream: str, command: Any, then: Any) -> None:
        self._service.ask_group(self._service.group_of(stream), True, command, then)

    def _unpinned(self, group: int, number: int, told: Any) -> None:
        if isinstance(told, Unpinned):
            self._service.ask_group(group, True, AckOutbox([number], 0), _nobody_waits)

    def _resolved(self, group: int, stream: str, incarnation: int, uuid: str, told: Any) -> None:
        if isinstance(told, ForkResolved):
            self._service.ask_group(group, True, SettlePin(stream, incarnation, uuid, told.alive, 0), _nobody_waits)


def _nobody_waits(result: Any) -> None:
    """If it got lost, the next look finds the same state."""
