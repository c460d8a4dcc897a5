"""When a node may call itself ready: engine/cluster_flow.py, without sockets."""

from anabranch_node.core.cluster.view import ClusterView, GroupPlacement, ReplicaPlace
from anabranch_node.engine.cluster_flow import caught_up
from tests.unit.test_host import ME, Node


def view(*placements: tuple[int, int, int]) -> ClusterView:
    """(group, replica, node) of groups with one replica each."""
    return ClusterView(1, "c", 2, 1, [], [GroupPlacement(group, [ReplicaPlace(replica, node)]) for group, replica, node in placements])


def test_not_ready_before_the_groups_of_the_streams_are_placed() -> None:
    node = Node()
    node.lead(0, 1)
    assert not caught_up(view((0, 1, ME.node_id)), node.host)
    placed = view((0, 1, ME.node_id), (1, 2, ME.node_id))
    assert not caught_up(placed, node.host)
    node.lead(1, 2)
    assert caught_up(placed, node.host)


def test_a_node_without_replicas_is_ready_once_the_groups_are_placed_elsewhere() -> None:
    other = ME.node_id + 1
    assert not caught_up(view((0, 1, other)), Node().host)
    assert caught_up(view((0, 1, other), (1, 2, other)), Node().host)
