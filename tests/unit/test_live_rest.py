"""Live readers that leave: the node comes to rest without them."""

from tests.unit.service_world import World


def test_a_reader_that_leaves_right_after_its_event_leaves_the_node_at_rest() -> None:
    world = World(holders=1)
    world.create()
    node = world.nodes[1]
    token = world.ask(1, "GET", "s?offset=-1&live=sse")
    world.settle()
    world.ask(1, "POST", "s", b"a", content_type="text/plain")
    while b"data:a" not in node.streams[token]:
        node.turn()
    world.leave(1, token)
    node.turn()
    node.turns_wanted = 0
    world.ticks(3)
    assert node.turns_wanted == 0
