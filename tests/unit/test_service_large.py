"""Large responses: made a few at a time, refused before they are made when clients leave too much untaken."""

from anabranch_node.service.service import LARGE_BYTES_PER_TURN, ServiceOptions
from tests.unit.service_world import World, status

BODY = b"x" * (900 << 10)


def world_with(unsent_bytes_max: int = 256 << 20) -> World:
    world = World(holders=1, options=ServiceOptions(unsent_bytes_max=unsent_bytes_max))
    world.create()
    assert status(world.append(1, BODY)) == 204
    return world


def test_a_crowd_is_served_over_several_turns_and_an_append_comes_through() -> None:
    world = world_with()
    node = world.nodes[1]
    tokens = [world.ask(1, "GET", f"s?offset=-1{'&live=sse' if number % 2 else ''}") for number in range(40)]
    append = world.ask(1, "POST", "s", b"y", content_type="text/plain")
    most = 0
    while node.inbox or node.service._large:
        before = len(node.answers) + len(node.streams)
        node.turn()
        most = max(most, len(node.answers) + len(node.streams) - before)
        if append in node.answers and len(node.answers) + len(node.streams) < len(tokens):
            break
    assert append in node.answers, "it came before the last of the crowd"
    assert most <= LARGE_BYTES_PER_TURN // len(BODY) + 2
    world.ticks(10)
    assert all(token in node.answers or token in node.streams for token in tokens)


def test_one_more_is_refused_while_clients_have_not_taken_what_they_asked_for() -> None:
    world = world_with(unsent_bytes_max=2 << 20)
    node = world.nodes[1]
    node.service.unsent_bytes = 2 << 20  # the client plane says so
    for query in ("offset=-1", "offset=-1&live=sse", "offset=-1&live=long-poll"):
        assert status(world.do(1, "GET", f"s?{query}")) == 503
    assert status(world.do(1, "HEAD", "s")) == 200
    node.service.unsent_bytes = 0
    assert status(world.do(1, "GET", "s?offset=-1")) == 200
