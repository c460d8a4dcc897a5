"""Sliding windows and reads: who resets one, and when."""

from anabranch_node.core.stream.machine import StreamMachine
from tests.unit.service_world import GROUP, World, status


def _touched_at(world: World) -> int:
    machine = world.nodes[world.leader].host.groups[GROUP].machine
    assert isinstance(machine, StreamMachine)
    rare = machine._table.streams["_default/s"].rare
    assert rare is not None
    return rare.touched_at_ms


def test_a_live_read_through_another_node_resets_the_window_when_it_starts_and_not_later() -> None:
    world = World(holders=3, extra=1)
    world.create(stream_ttl="8")
    world.ticks(30)
    before = _touched_at(world)
    world.ask(4, "GET", "s?offset=-1&live=sse")
    world.ticks(4)
    started = _touched_at(world)
    assert started > before
    world.ticks(60)  # six keep-alives, each of which asks the holder again
    assert _touched_at(world) == started


def test_a_head_does_not_reset_the_window_and_a_read_does() -> None:
    world = World()
    world.create(stream_ttl="8")
    world.ticks(30)
    before = _touched_at(world)
    follower = world.follower()
    assert status(world.do(follower, "HEAD", "s")) == 200
    assert _touched_at(world) == before
    assert status(world.do(follower, "GET", "s?offset=now")) == 200
    assert _touched_at(world) > before
