"""Little disk is left: what makes room, keeps the cluster together or only keeps time goes on; what fills it is refused."""

from anabranch_node.core import effects as fx
from tests.unit.service_world import World, status


def test_appends_are_refused_while_deletes_closes_and_reads_go_on() -> None:
    world = World()
    for name in ("s", "t"):
        world.create(name, stream_ttl="8")
    leader = world.leader
    world.nodes[leader].inbox.append(fx.DiskSpace(spare_segments=1, free_bytes=1 << 20))
    world.ticks(30)
    answer = world.append(leader, b"a")
    assert status(answer) == 503 and b"disk_full" in answer
    assert status(world.do(leader, "PUT", "u", content_type="text/plain")) == 503
    assert status(world.do(leader, "GET", "s")) == 200
    world.ticks(150)  # touched by that read, which is younger than the window; "t" was not
    assert status(world.do(leader, "HEAD", "s")) == 200
    assert status(world.do(leader, "POST", "s", stream_closed="true")) == 204
    assert status(world.do(leader, "DELETE", "s")) == 204


def test_nothing_is_written_without_a_segment_to_write_to() -> None:
    world = World()
    world.create()
    leader = world.leader
    world.nodes[leader].inbox.append(fx.DiskSpace(spare_segments=0, free_bytes=1 << 20))
    world.ticks(1)
    assert status(world.do(leader, "DELETE", "s")) == 503
