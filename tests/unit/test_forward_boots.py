"""Numbers of forwarded requests: an answer is for the process that asked, never for the one that came after it."""

from tests.unit.service_world import Node, World, status


def test_an_answer_to_an_earlier_start_is_not_taken_for_one_of_ours() -> None:
    world = World(holders=3, extra=1)
    world.create()
    leader = world.leader
    world.nodes[4] = Node(world, 4, boot=2)
    world.settle()
    world.hold = {(leader, 4)}
    world.ask(4, "POST", "s", b"a", content_type="text/plain")
    world.settle()
    assert world.held, "the write is done, and its answer on the way"
    world.nodes[4] = Node(world, 4, boot=3)
    token = world.ask(4, "POST", "nowhere", b"b", content_type="text/plain")
    world.settle()
    world.release()
    assert status(world.nodes[4].answers[token]) == 404
