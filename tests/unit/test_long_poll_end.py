"""The end of a long-poll: what it says was looked up behind a second ReadIndex, from the place where the wait began."""

from tests.unit.service_world import World, status


def _cut_off(world: World, number: int) -> set[tuple[int, int]]:
    return {way for other in world.nodes for way in ((number, other), (other, number))}


def test_a_poll_from_now_never_skips_what_was_appended_while_it_waited() -> None:
    world = World()
    world.create()
    world.append(world.leader, b"old")
    follower = world.follower()
    token = world.ask(follower, "GET", "s?offset=now&live=long-poll")
    world.ticks(3)
    world.cut = _cut_off(world, follower)
    assert status(world.append(world.leader, b"new")) == 204
    world.ticks(30)  # the follower hears no leader for long enough to end its live reads
    world.cut.clear()
    world.ticks(20)
    answer = world.nodes[follower].answers[token]
    assert status(answer) == 200 and answer.endswith(b"\r\n\r\nnew")


def test_a_poll_that_is_over_does_not_begin_again() -> None:
    world = World()
    world.create()
    follower = world.follower()
    token = world.ask(follower, "GET", "s?offset=-1&live=long-poll")
    world.ticks(3)
    world.cut = _cut_off(world, follower)
    world.ticks(60)  # three times as long as a poll waits
    assert token not in world.nodes[follower].answers
    world.cut.clear()
    for _ in range(60):
        world.ticks(1)
        if world.leader and world.nodes[follower].host.groups[1].raft.hears_leader():
            break
    world.ticks(8)
    assert status(world.nodes[follower].answers[token]) == 204
