"""An event stream through a node that holds no replica of the stream: another node is asked, again and again."""

from tests.unit.service_world import World


def test_http_seed_198_a_question_that_is_lost_ends_the_response() -> None:
    """Otherwise it stood still until its rotation, which may be a minute away, and its client took that for "nothing new"."""
    world = World(holders=1, extra=1)
    world.create()
    token = world.ask(2, "GET", "s?offset=-1&live=sse")
    world.ticks(2)
    node = world.nodes[2]
    world.append(1, b"first")
    world.ticks(2)
    assert b"data:first" in node.streams[token]
    world.cut.add((1, 2))
    world.append(1, b"second")
    world.ticks(10)
    world.cut.clear()
    limit_ms = world.options.request_timeout_ms
    world.ticks(limit_ms // 50 + 2)
    assert token in node.ended
    assert all(node.service.pending == 0 for node in world.nodes.values())


def test_one_that_has_nothing_to_say_goes_on() -> None:
    world = World(holders=1, extra=1)
    world.create()
    token = world.ask(2, "GET", "s?offset=-1&live=sse")
    node = world.nodes[2]
    world.ticks(3 * world.options.request_timeout_ms // 50)
    assert token not in node.ended
    world.append(1, b"late")
    world.ticks(2)
    assert b"data:late" in node.streams[token]
