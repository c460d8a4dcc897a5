"""When a node that was ready is not ready any more."""

import asyncio
from pathlib import Path

from anabranch_node.config import NodeConfig
from anabranch_node.core.cluster.view import ClusterView, NodeInfo
from anabranch_node.drivers.node import Node
from anabranch_proto.ids import NodeIdentity


def _node(number: int, state: str = "active") -> NodeInfo:
    return NodeInfo(number, f"n{number}", number, 1, "", "", "127.0.0.1:1", "", state)  # type: ignore[arg-type]


def test_a_node_that_is_cut_off_from_all_peers_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(NodeConfig(name="n1", data_dir=str(tmp_path)))
        node._identity = NodeIdentity("c1", 1, 1)
        node._opened.set()
        node._registered = node._caught_up = True
        reached: set[int] = set()
        node._peers.is_connected = lambda number, bulk=False: number in reached  # type: ignore[method-assign]
        node._view = ClusterView(1, "c1", 4, 1, [_node(1)], [])
        assert node.readyz() == (True, ""), "alone by design"
        node._view = ClusterView(2, "c1", 4, 3, [_node(1), _node(2), _node(3), _node(4, "replacing")], [])
        assert node.readyz() == (False, "cut off from all other nodes")
        reached.add(4)
        assert node.readyz()[0] is False, "that one holds nothing"
        reached.add(2)
        assert node.readyz() == (True, "")

    asyncio.run(scenario())
