"""A letter that could not leave: nothing happened, so it is sent again, or somewhere else."""

import pytest

from anabranch_node.service.effects import FramesDropped
from tests.unit.service_world import World, status


@pytest.mark.parametrize("extra", [0, 1])
def test_a_write_finds_the_new_leader_although_the_old_one_cannot_be_reached(extra: int) -> None:
    """Through a follower, and through a node that holds no replica and asks the preferred leader first."""
    world = World(holders=3, extra=extra)
    world.create()
    dead = world.leader
    edge = 4 if extra else world.follower()
    world.nodes[dead].up = False
    world.broken = {(other, dead) for other in world.nodes}
    token = world.ask(edge, "POST", "s", b"a", content_type="text/plain")
    world.ticks(60)
    assert status(world.nodes[edge].answers[token]) == 204
    assert world.do(edge, "GET", "s").endswith(b"\r\n\r\na")


def test_what_was_sent_before_is_still_waited_for() -> None:
    world = World(holders=3, extra=1)
    world.create()
    leader = world.leader
    world.hold = {(leader, 4)}
    token = world.ask(4, "POST", "s", b"a", content_type="text/plain")
    world.settle()
    world.nodes[4].inbox.append(FramesDropped(leader))
    world.settle()
    assert token not in world.nodes[4].answers
    world.release()
    assert status(world.nodes[4].answers[token]) == 204
