"""A long-poll through a node that holds no replica of the stream waits like any other."""

from tests.unit.service_world import World, status


def test_it_waits_for_data() -> None:
    world = World(holders=3, extra=1)
    world.create()
    token = world.ask(4, "GET", "s?offset=now&live=long-poll")
    world.ticks(10)
    assert token not in world.nodes[4].answers
    world.append(1, b"a")
    world.ticks(4)
    answer = world.nodes[4].answers[token]
    assert status(answer) == 200 and answer.endswith(b"\r\n\r\na")


def test_it_ends_in_time() -> None:
    world = World(holders=3, extra=1)
    world.create()
    token = world.ask(4, "GET", "s?offset=-1&live=long-poll")
    world.ticks(18)
    assert token not in world.nodes[4].answers
    world.ticks(12)
    answer = world.nodes[4].answers[token]
    assert status(answer) == 204 and b"Stream-Up-To-Date: true" in answer and b"Stream-Cursor: " in answer
    assert all(node.service.pending == 0 for node in world.nodes.values())
