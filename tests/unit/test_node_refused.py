"""A data directory that the cluster has reason not to trust: refused by the meta group, and the node on it stops."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from anabranch_node.config import NodeConfig
from anabranch_node.core.cluster.commands import InitCluster, RegisterNode
from anabranch_node.core.cluster.machine import MetaMachine
from anabranch_node.core.cluster.results import ClusterRefusal, NodeRefused, NodeRegistered
from anabranch_node.core.cluster.view import ClusterView, encode_view
from anabranch_node.drivers.admin_http import AdminRefused
from anabranch_node.drivers.node import JoinAnswer, Node
from anabranch_proto.admin import InitRequest
from anabranch_proto.ids import NodeIdentity


def test_a_copy_that_was_started_as_often_as_the_original_is_refused() -> None:
    """The volume was copied at boot 5 and the node restarted once, for an upgrade; then the copy is put back, at the same address."""
    machine = MetaMachine()
    original = RegisterNode("n1", 10, 6, "a:1", "a:2", "a:3", "", 0, start_id=111)
    machine.apply_commands(1, [InitCluster("c1", 1, 1, RegisterNode("n0", 9, 1, "", "", "", "", 0, start_id=1), 0)])
    assert machine.apply_commands(2, [original, original]) == [NodeRegistered(2, "active")] * 2
    (refused,) = machine.apply_commands(3, [msgspec.structs.replace(original, start_id=222)])
    assert isinstance(refused, NodeRefused) and "old copy" in str(refused)


@pytest.mark.parametrize("through_a_peer", [False, True])
def test_a_refused_node_stops_and_one_that_is_only_early_does_not(tmp_path: Path, through_a_peer: bool) -> None:
    async def scenario() -> None:
        node = Node(NodeConfig(name="n1", data_dir=str(tmp_path), peers=("127.0.0.1:1",)))
        host: Any = SimpleNamespace(groups={} if through_a_peer else {0: None}, me=NodeIdentity("c1", 2, 10))
        node._host = host
        answers: list[Any] = [ClusterRefusal("the cluster is not initialised yet"), NodeRefused("an old copy")]

        async def ask(*_: Any) -> Any:
            return answers.pop(0)

        async def call(*_: Any) -> bytes:
            answer = answers.pop(0)
            if isinstance(answer, ClusterRefusal):
                raise RuntimeError(answer.reason)
            return msgspec.msgpack.encode(JoinAnswer(0, "", b"", answer.reason))

        node._ask = ask  # type: ignore[method-assign]
        node._peers.call = call  # type: ignore[method-assign]
        await asyncio.wait_for(node._keep_registered(), 5)
        assert not answers
        assert node._ended.is_set() and "an old copy" in node._failure

    asyncio.run(scenario())


@pytest.mark.parametrize("cluster_id", ["c1", "c2"])
def test_init_is_refused_where_a_peer_is_in_a_cluster_already(tmp_path: Path, cluster_id: str) -> None:
    """The same id sent to a second node would make a second meta group under one name."""

    async def scenario() -> None:
        node = Node(NodeConfig(name="n2", data_dir=str(tmp_path), peers=("127.0.0.1:1", "127.0.0.1:2")))

        async def call(address: str, method: str, *_: Any) -> bytes:
            if address.endswith(":1"):
                raise OSError("nobody is there")
            assert method == "view"
            return encode_view(ClusterView(1, "c1", 4, 3, [], []))

        node._peers.call = call  # type: ignore[method-assign]
        with pytest.raises(AdminRefused) as refused:
            await node.init(InitRequest(cluster_id))
        assert refused.value.status == 409
        assert node._identity is None, "nothing was written"

    asyncio.run(scenario())
