"""A leader whose clock is far off the others' hands over, and is not made leader again before it is right."""

from anabranch_node.core.raft.raft import Role
from anabranch_node.engine.clocks import OURS, Clocks
from anabranch_node.engine.cluster_flow import ClusterFlow
from tests.unit.service_world import GROUP, World


def test_who_strays_is_what_the_others_agree_on() -> None:
    clocks = Clocks()
    clocks.heard(2, 10_000, 0)
    assert not clocks.strays(OURS, [2, 3]) and not clocks.strays(2, [2, 3]), "of two clocks nobody knows which is wrong"
    clocks.heard(3, 9_000, 0)
    assert clocks.strays(OURS, [2, 3]) and not clocks.strays(2, [2, 3]) and not clocks.strays(3, [2, 3])
    clocks.heard(3, 1_000, 0)
    assert not clocks.strays(OURS, [2, 3]) and clocks.strays(2, [2, 3]) and not clocks.strays(3, [2, 3])
    assert not clocks.strays(4, [2, 3]), "not heard yet"


def _flow(world: World, flows: dict[int, ClusterFlow], ticks: int) -> None:
    """What drivers/node.py does at each tick."""
    for _ in range(ticks):
        for number, node in world.nodes.items():
            node.inbox.extend(flows[number].step(world.now_ms, world.view, node.host).host_events)
        world.ticks(1)


def test_a_leader_with_a_wrong_clock_hands_over_until_it_is_right() -> None:
    for skew_ms in (-3_600_000, 3_600_000):
        world = World()
        flows = {number: ClusterFlow(number) for number in world.nodes}
        assert world.leader == 1, "the preferred one"
        world.nodes[1].skew_ms = skew_ms
        _flow(world, flows, 40)
        assert world.leader != 1
        _flow(world, flows, 200)
        assert world.nodes[1].host.groups[GROUP].raft.role is Role.FOLLOWER
        world.nodes[1].skew_ms = 0
        _flow(world, flows, 200)
        assert world.leader == 1
