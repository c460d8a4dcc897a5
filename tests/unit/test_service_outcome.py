"""Definite or unknown: a write that may be in a log somewhere is never called undone."""

from tests.unit.service_world import World, status


def test_a_forwarded_write_that_its_leader_gave_up_is_unknown_and_not_sent_again() -> None:
    """The leader's clock is set forward while a write of another node waits for its commit: its time is over there, but it is in the log."""
    world = World(holders=3, extra=1)
    world.create()
    world.append(4, b"a")
    leader = world.leader
    others = [number for number in (1, 2, 3) if number != leader]
    world.cut = {(leader, other) for other in others} | {(other, leader) for other in others}
    token = world.ask(4, "POST", "s", b"b", content_type="text/plain")
    world.settle()
    world.nodes[leader].skew_ms = 11_000
    world.ticks(2)
    answer = world.nodes[4].answers[token]
    assert status(answer) == 503 and b"outcome_unknown" in answer
    world.nodes[leader].skew_ms = 0
    world.cut.clear()
    world.ticks(60)
    assert world.do(4, "GET", "s").partition(b"\r\n\r\n")[2] in (b"a", b"ab")
