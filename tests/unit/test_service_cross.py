"""What groups owe each other is sent until it is acknowledged, and not a moment less."""

from types import SimpleNamespace
from typing import Any

from anabranch_node.core.errors import NotLeading, OutcomeUnknown
from anabranch_node.core.raft.raft import Role
from anabranch_node.core.stream.commands import AckOutbox, BucketOpen, Command, CreateFork, Delete, Unpin
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.results import Unpinned
from anabranch_node.service.cross import Errands, Outboxes

LATER_MS = 60_000


def test_an_unpin_stays_in_the_outbox_until_its_receiver_has_acknowledged_it() -> None:
    machine = StreamMachine()
    fork = CreateFork("b/fork", "u", "b/source", 65536, None, 0, 0, 0, [], "text/plain", 0)
    commands: list[Command] = [BucketOpen("b", 0, 0), fork, Delete("b/fork", 0)]
    machine.apply_commands(1, commands)
    assert list(machine.outbox) == [1]
    asked: list[tuple[int, Any, Any]] = []
    group = SimpleNamespace(id=7, fenced=False, raft=SimpleNamespace(role=Role.LEADER), machine=machine)
    host: Any = SimpleNamespace(groups={7: group})
    routing: Any = SimpleNamespace(ready=True, group_of=lambda stream: 3)
    errands = Errands(lambda group, write, command, then: asked.append((group, command, then)))
    outboxes = Outboxes(host)

    def look(now_ms: int) -> None:
        errands.tick(now_ms)
        outboxes.step(errands, routing)

    for number, lost in enumerate((NotLeading(0), OutcomeUnknown("the connection broke"))):
        look(number * LATER_MS)
        look(number * LATER_MS + 1)
        (to, command, then), *more = asked
        assert not more
        assert (to, command) == (3, Unpin("b/source", 65536, "u", 0))
        asked.clear()
        then(lost)
        assert not asked
    look(2 * LATER_MS)
    then = asked.pop()[2]
    then(Unpinned())
    assert [(to, command) for to, command, _ in asked] == [(7, AckOutbox([1], 0))]
