"""A node whose own replica is out of service asks the others."""

from tests.unit.service_world import GROUP, World, status


def test_requests_go_elsewhere_from_a_fenced_replica() -> None:
    world = World()
    world.create()
    world.append(1, b"a")
    for number in list(world.nodes):
        node = world.nodes[number]
        node.host._fence(node.host.groups[GROUP], "a test says so", durable=False)
        world.ticks(60)  # the rest elects a leader, if it has to
        assert status(world.do(number, "GET", "s")) == 200
        assert status(world.append(number, b"b")) == 204
        node.host.groups[GROUP].fenced = ""
        world.ticks(60)
