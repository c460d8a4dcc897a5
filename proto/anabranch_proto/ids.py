"""Names that cross process boundaries: who a node is, where a stream lives.

A node is (cluster, node id, incarnation): the incarnation, 63 random bits, is drawn when a data directory is made, so that an emptied disk is
another node.
A Raft member is a replica id, never a node: issued once by the meta group and never used again."""

from hashlib import blake2b
from typing import NamedTuple

META_GROUP = 0


class NodeIdentity(NamedTuple):
    cluster_id: str
    node_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"node {self.node_id} incarnation {self.incarnation:x} of cluster {self.cluster_id}"


def group_of(bucket: str, stream: str, group_count: int) -> int:
    """The group that holds a stream. Part of the cluster's identity: golden vectors in tests/unit/test_ids.py pin it."""
    digest = blake2b(f"{bucket}/{stream}".encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % group_count
