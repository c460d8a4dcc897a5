"""A request's life through any node: routed, carried out once, answered."""

from tests.unit.service_world import World, status


def test_any_node_serves_reads_and_writes() -> None:
    world = World(holders=3, extra=1)
    world.create()
    for number in world.nodes:
        assert status(world.append(number, b"%d" % number)) == 204
    for number in world.nodes:
        answer = world.do(number, "GET", "s")
        assert status(answer) == 200 and answer.endswith(b"\r\n\r\n1234")
        assert status(world.do(number, "HEAD", "s")) == 200
        assert status(world.do(number, "GET", "nowhere")) == 404
