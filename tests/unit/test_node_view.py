"""Which view of the cluster a node believes: of its own cluster, and never an older one than it has."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from anabranch_node.config import NodeConfig
from anabranch_node.core.cluster.view import ClusterView, NodeInfo, encode_view
from anabranch_node.drivers import data_dir
from anabranch_node.drivers.fs import OsFs
from anabranch_node.drivers.node import JoinAnswer, Node
from anabranch_proto.ids import NodeIdentity


def _view(version: int, cluster: str = "c1") -> ClusterView:
    return ClusterView(version, cluster, 4, 3, [NodeInfo(1, "n1", 10, 1, "", "", "127.0.0.1:1", "", "active")], [])


def test_a_join_answered_late_by_another_cluster_changes_nothing(tmp_path: Path) -> None:
    """The node was told to initialise its own cluster while it asked its peers for one."""

    async def scenario() -> None:
        node = Node(NodeConfig(name="n1", data_dir=str(tmp_path), peers=("127.0.0.1:1",)))
        node._incarnation = 10

        async def call(*_: Any) -> bytes:
            node._write_identity(NodeIdentity("mine", 1, 10))
            return msgspec.msgpack.encode(JoinAnswer(7, "active", encode_view(_view(3, "theirs"))))

        node._peers.call = call  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="theirs"):
            await node._join_through("127.0.0.1:1")
        assert node._view is None
        assert data_dir.read_cache(OsFs(), str(tmp_path), "view") is None

    asyncio.run(scenario())


def test_an_older_view_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(NodeConfig(name="n1", data_dir=str(tmp_path), peers=("127.0.0.1:1",)))
        node._identity = NodeIdentity("c1", 1, 10)
        node._take_view(_view(5))

        async def call(*_: Any) -> bytes:
            return msgspec.msgpack.encode(JoinAnswer(1, "active", encode_view(_view(4))))

        node._peers.call = call  # type: ignore[method-assign]
        await node._join_through("127.0.0.1:1")
        assert node._view is not None and node._view.version == 5

    asyncio.run(scenario())
