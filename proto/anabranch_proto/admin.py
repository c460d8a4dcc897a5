"""Shapes of a node's admin API: what drivers/admin_http.py answers and the `anabranch` command, the operator and the jobs read.

Requests refuse unknown fields, since a misspelt wish must not be half granted. Answers may gain fields: a reader of an older version skips them.
Incarnations (63 bits) travel as hexadecimal text, since many JSON readers keep 53 bits. Not here: HTTP itself, and who may call."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

STATUS_PATH: Final = "/admin/v1/status"
INIT_PATH: Final = "/admin/v1/init"
GROUPS_PATH: Final = "/admin/v1/groups"

CLUSTER_ID_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
GROUP_COUNT_MAX: Final = 4096
REPLICATION_FACTOR_MAX: Final = 7

NodeState = Literal["uninitialized", "joining", "active", "draining", "replacing", "removed"]
GroupRole = Literal["leader", "follower", "candidate", "learner", "fenced", "recovering"]


class ThisNode(Struct, frozen=True, kw_only=True):
    """The node that answers."""

    name: str
    node_id: int = 0  # 0: not yet given one by the meta group
    incarnation: str = ""  # hexadecimal
    boot: int = 0
    version: str = ""
    state: NodeState = "uninitialized"
    ready: bool = False
    ready_reason: str = ""  # why not, if not
    uptime_ms: int = 0
    client_address: str = ""
    admin_address: str = ""
    peer_address: str = ""


class NodeSummary(Struct, frozen=True, kw_only=True):
    """A node of the cluster as the answering node knows it."""

    node_id: int
    name: str
    incarnation: str = ""
    client_address: str = ""
    admin_address: str = ""
    peer_address: str = ""
    zone: str = ""
    state: NodeState = "active"
    reachable: bool = True


class GroupStatus(Struct, frozen=True, kw_only=True):
    """One replica that the answering node hosts."""

    group: int
    replica: int
    role: GroupRole
    leader_node: int = 0  # 0: unknown
    term: int = 0
    commit: int = 0
    applied: int = 0
    streams: int = 0
    hot_bytes: int = 0
    fenced: str = ""  # the reason; empty: it works


class DiskStatus(Struct, frozen=True, kw_only=True):
    free_bytes: int = 0
    spare_segments: int = 0
    live_segments: int = 0


class NodeStatus(Struct, frozen=True, kw_only=True):
    """Answer to GET /admin/v1/status."""

    node: ThisNode
    cluster_id: str = ""  # empty: neither initialized nor joined
    group_count: int = 0
    replication_factor: int = 0
    view_version: int = 0
    nodes: list[NodeSummary] = []
    groups: list[GroupStatus] = []
    disk: DiskStatus = DiskStatus()
    counters: dict[str, int] = {}


class InitRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """POST /admin/v1/init, to one node. The caller keeps `cluster_id` before it asks: the same id again is 200, another is 409."""

    cluster_id: Annotated[str, Meta(pattern=CLUSTER_ID_PATTERN)]
    group_count: Annotated[int, Meta(ge=1, le=GROUP_COUNT_MAX)] = 64
    replication_factor: Annotated[int, Meta(ge=1, le=REPLICATION_FACTOR_MAX)] = 3


class InitAnswer(Struct, frozen=True):
    cluster_id: str
    group_count: int
    replication_factor: int
    created: bool  # False: this cluster existed already, by an earlier try of the same request


class TransferRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """POST /admin/v1/groups/{g}/transfer. Without a target the leader picks the most caught-up voter."""

    to_node: Annotated[int, Meta(ge=1)] | None = None


class TransferAnswer(Struct, frozen=True):
    """The leader was asked to step aside. Whether another one won shows in the status."""

    group: int
    to_node: int | None = None


class SnapshotRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """POST /admin/v1/groups/{g}/snapshot; it has no settings yet."""


class SnapshotAnswer(Struct, frozen=True):
    group: int
    index: int = 0  # the snapshot covers the log up to here, or will


class Probe(Struct, frozen=True):
    """Answer to /healthz and /readyz. The status code says the same: 200 or 503."""

    ok: bool
    reason: str = ""


class ProblemDetail(Struct, frozen=True):
    code: str
    message: str


class Problem(Struct, frozen=True):
    """The body of every error, on this plane and on the clients'."""

    error: ProblemDetail


def problem(code: str, message: str) -> bytes:
    return msgspec.json.encode(Problem(ProblemDetail(code, message)))
