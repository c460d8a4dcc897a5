"""Who two nodes are to each other: the hello of the peer plane, what makes it refused, and the errors by which a caller hears of it.

Before us: grpc_peer.py and peer_lane.py decode and send. After us: nothing; these are decisions about two identities. Not here: sockets."""

import ssl
from dataclasses import dataclass

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from anabranch_proto import peer_pb2 as pb

VERSION = 1
"""Of everything said on this plane: hello, packets and the frames inside."""


class PeerError(Exception):
    """Something did not work with another node."""


class PeerRefusedHello(PeerError):
    """The other node answered, and wants nothing of us. `reason` is its name: WRONG_CLUSTER, WRONG_NODE, NEWER_VERSION..."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class PeerUnavailable(PeerError):
    """No answer. Whether a call was carried out is unknown."""


class CallRefused(Exception):
    """Raised by a handler of calls: a definite no, worth an answer and not a line in the log."""


class PeerTimeout(PeerUnavailable):
    """No answer in time."""


class PeerCallFailed(PeerUnavailable):
    """The other side's handler raised."""


class Hello(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    node_id: int
    incarnation: int


@dataclass(frozen=True)
class PeerOptions:
    server_credentials: ssl.SSLContext | None = None  # None: plain text
    channel_credentials: ssl.SSLContext | None = None  # None: plain text
    control_queue_bytes_max: int = 4 << 20
    bulk_queue_bytes_max: int = 32 << 20
    packet_bytes_max: int = 1 << 20
    frame_bytes_max: int = 64 << 20
    call_bytes_max: int = 4 << 20
    calls_bytes_max: int = 64 << 20  # of all calls being answered, together
    call_life_s: float = 60.0  # of one call being answered, whatever its sender does
    rpcs_max: int = 1024
    connections_max: int = 512
    hello_timeout_s: float = 5.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0
    keepalive_interval_ms: int = 10_000
    keepalive_timeout_ms: int = 5_000


def check_hello(ours: Hello, peers: dict[int, tuple[int, str]], hello: pb.Hello) -> pb.Refusal | None:
    theirs = hello.sender
    refusal = check_identity(ours, theirs)
    if refusal is not None:
        return refusal
    if ours.cluster_id != theirs.cluster_id:
        return pb.Refusal(reason=pb.WRONG_CLUSTER, detail=f"this is cluster {ours.cluster_id!r}, you are of {theirs.cluster_id!r}")
    if hello.lane not in (pb.CONTROL, pb.BULK) or theirs.node_id == 0:
        return pb.Refusal(reason=pb.BAD_HELLO, detail="without a lane or a node id")
    if ours.node_id == 0 or hello.expected_node_id != ours.node_id:
        return pb.Refusal(reason=pb.WRONG_NODE, detail=f"this is node {ours.node_id}, you expected {hello.expected_node_id}")
    if hello.expected_incarnation != ours.incarnation:
        detail = f"this is incarnation {ours.incarnation} of node {ours.node_id}, you expected {hello.expected_incarnation}"
        return pb.Refusal(reason=pb.WRONG_INCARNATION, detail=detail)
    known = peers.get(theirs.node_id)
    if known is None:
        return pb.Refusal(reason=pb.UNKNOWN_NODE, detail=f"node {theirs.node_id} is not known here")
    if known[0] != theirs.incarnation:
        detail = f"you are incarnation {theirs.incarnation} of node {theirs.node_id}, known here is {known[0]}"
        return pb.Refusal(reason=pb.WRONG_INCARNATION, detail=detail)
    return None


def identity_of(hello: Hello) -> pb.Identity:
    return pb.Identity(version=hello.version, cluster_id=hello.cluster_id, node_id=hello.node_id, incarnation=hello.incarnation)


def decode_hello(data: bytes | None) -> pb.Hello | None:
    if data is None:
        return None
    try:
        packet = pb.Packet.FromString(data)
    except DecodeError:
        return None
    return packet.hello if packet.HasField("hello") and packet.hello.HasField("sender") else None


def check_identity(ours: Hello, theirs: pb.Identity) -> pb.Refusal | None:
    """What holds for calls, too: there a node without a cluster may ask to join one."""
    if theirs.version < 1:
        return pb.Refusal(reason=pb.BAD_HELLO, detail=f"version {theirs.version} never existed")
    if theirs.version > ours.version:
        return pb.Refusal(reason=pb.NEWER_VERSION, detail=f"you speak version {theirs.version}, this node reads up to {ours.version}")
    if ours.cluster_id and theirs.cluster_id and ours.cluster_id != theirs.cluster_id:
        return pb.Refusal(reason=pb.WRONG_CLUSTER, detail=f"this is cluster {ours.cluster_id!r}, you are of {theirs.cluster_id!r}")
    return None


def reason_name(refusal: pb.Refusal) -> str:
    """A newer node may have reasons that we do not know."""
    return pb.Reason.Name(refusal.reason) if refusal.reason in pb.Reason.values() else str(refusal.reason)
