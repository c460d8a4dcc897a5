"""Sliding windows and reads: who resets one, and when."""

from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import ServiceOptions
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


def test_a_read_of_a_published_snapshot_resets_the_window() -> None:
    world = World()
    world.create(stream_ttl="8")
    assert status(world.do(world.leader, "PUT", f"s/snapshot/{0:020d}", b"fold")) == 204
    for target, answer in ((f"s/snapshot/{0:020d}", 200), ("s/snapshot", 307)):
        world.ticks(30)
        before = _touched_at(world)
        assert status(world.do(world.follower(), "GET", target)) == answer
        assert _touched_at(world) > before


def test_a_touch_that_is_answered_late_is_not_taken_for_the_answer_of_a_long_poll() -> None:
    """Seed 256: the disk stalled, the read went on without its touch, and then that was committed."""
    world = World(holders=1, options=ServiceOptions(request_timeout_ms=1_000, live=LiveOptions(long_poll_timeout_ms=60_000)))
    world.create(stream_ttl="8")
    world.ticks(30)
    node, before = world.nodes[1], _touched_at(world)
    node.disk_stalls = True
    token = world.ask(1, "GET", f"s?offset={0:020d}&live=long-poll")
    world.ticks(30)
    assert _touched_at(world) == before
    assert token not in node.answers
    node.disk_stalls = False
    world.ticks(2)
    assert _touched_at(world) > before
    assert token not in node.answers, node.answers[token]
    world.append(1, b"x")
    assert status(node.answers[token]) == 200
