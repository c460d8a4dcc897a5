"""One wrong clock cannot move a group's time, whoever leads it."""

from anabranch_node.core import effects as fx
from anabranch_node.core.stream.machine import StreamMachine
from tests.unit.service_world import GROUP, World, status

HOUR_MS = 3_600_000


def test_the_first_stamp_of_a_new_leader_is_bounded_too() -> None:
    """It gets its office between two ticks, and a request comes before the next one."""
    world = World()
    world.create()
    wrong = world.follower()
    world.nodes[wrong].skew_ms = HOUR_MS
    world.ticks(10)
    world.nodes[world.leader].inbox.append(fx.TransferLeadership(0, GROUP, 10 + wrong))
    world.settle()
    assert world.leader == wrong
    assert status(world.append(wrong, b"a")) == 204
    machine = world.nodes[wrong].host.groups[GROUP].machine
    assert isinstance(machine, StreamMachine)
    assert machine.now_ms < world.now_ms + 3_000
