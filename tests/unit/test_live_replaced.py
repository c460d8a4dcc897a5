"""Live readers of what is replaced under them: a machine by a snapshot, a stream by another of its name."""

from anabranch_node.core.stream.commands import Append
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import ServiceOptions
from tests.unit.service_world import GROUP, World, status


def test_a_reader_behind_an_installed_snapshot_is_woken_though_another_registers_in_the_same_step() -> None:
    """Seed 502 of the simulator."""
    world = World(holders=1)
    world.create("s")
    world.create("t")
    node = world.nodes[1]
    behind = world.ask(1, "GET", "s?offset=-1&live=sse")
    world.settle()
    group = node.host.groups[GROUP]
    machine = StreamMachine.restore(list(group.machine.freeze().slices(1 << 20)))
    machine.apply_commands(machine.applied_index + 1, [Append("_default/s", b"a", 0)])
    # Installed between the step that served the last reader and the one that serves the next.
    other = world.ask(1, "GET", "t?offset=-1&live=sse")
    group.machine = machine
    world.settle()
    assert other in node.streams
    assert b"data:a\n" in node.streams[behind]


def test_a_long_poll_from_now_means_the_stream_that_is_there_now() -> None:
    """Seed 550 of the simulator: it was told that its offset, which it never gave, lies beyond the tail."""
    world = World(holders=3, extra=1, options=ServiceOptions(live=LiveOptions(long_poll_timeout_ms=30_000)))
    world.create()
    world.append(world.leader, b"before")
    leader = world.leader
    tokens = {number: world.ask(number, "GET", "s?offset=now&live=long-poll") for number in world.nodes}
    world.ticks(4)
    world.ask(leader, "DELETE", "s")
    world.ask(leader, "PUT", "s", content_type="text/plain")  # both in one entry: no replica ever is without the stream
    world.ticks(20)
    for number, token in tokens.items():
        assert status(world.nodes[number].answers[token]) == 204, world.nodes[number].answers[token]
