"""Raft messages of all groups to one peer as one frame of bytes, and back. Before us: outbox.py; after us: the peer link of the driver.

    magic "ABPF" | version u16 | crc32c u32 of the body | body (msgpack):
    [cluster id, from node, from incarnation, to node, to incarnation, sender's clock in ms, [[group, kind, message], ...]]

A message is one of Raft's, or a forwarded request or its answer (engine/forward.py). The clock is a hint for the stamps (engine/clocks.py).

Every frame says who it is from and who it is for. One that is not for exactly us is refused whole and named: two clusters can never mix,
and a node that lost its disk is never taken for what it was."""

import struct
from typing import Any

import msgspec

from anabranch_node.core.raft import messages
from anabranch_node.core.raft.messages import Message
from anabranch_node.engine.letters import Forward, ForwardAnswer
from anabranch_proto import formats
from anabranch_proto.checksum import crc32c
from anabranch_proto.ids import NodeIdentity

_HEADER = struct.Struct("<4sHI")
Letter = Message | Forward | ForwardAnswer
KINDS: dict[int, type[Letter]] = {**messages.KINDS, 30: Forward, 31: ForwardAnswer}
_KIND_OF: dict[type[Letter], int] = {message: kind for kind, message in KINDS.items()}
_encoder = msgspec.msgpack.Encoder()
_body_decoder = msgspec.msgpack.Decoder(tuple[str, int, int, int, int, int, list[tuple[int, int, msgspec.Raw]]])
_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {kind: msgspec.msgpack.Decoder(message) for kind, message in KINDS.items()}


def encode(src: NodeIdentity, node: int, incarnation: int, now_ms: int, letters: list[tuple[int, Letter]]) -> bytes:
    """`letters` are (group, message) pairs, in the order in which the peer steps them."""
    body = _encoder.encode(
        (src.cluster_id, src.node_id, src.incarnation, node, incarnation, now_ms, [(group, _KIND_OF[type(m)], m) for group, m in letters])
    )
    return _HEADER.pack(formats.PEER_FRAME.magic, formats.PEER_FRAME.version, crc32c(body)) + body


def decode(data: bytes, me: NodeIdentity, link_node: int) -> tuple[int, int, int, list[tuple[int, Letter]]]:
    """(sending node, its incarnation, its clock, letters). Raises a FormatError that names the peer; then nothing of the frame was used."""
    where = f"frame from node {link_node}"
    if len(data) < _HEADER.size:
        raise formats.Damaged(where, f"{len(data)} bytes are shorter than a frame header")
    magic, version, crc = _HEADER.unpack_from(data)
    formats.check(formats.PEER_FRAME, magic, version, where)
    body = memoryview(data)[_HEADER.size :]
    if crc32c(body) != crc:
        raise formats.Damaged(where, "checksum does not match")
    try:
        cluster_id, src_node, src_incarnation, node, incarnation, now_ms, letters = _body_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise formats.Damaged(where, f"does not decode: {error}") from error
    if cluster_id != me.cluster_id:
        raise formats.ForeignFormat(where, f"it belongs to cluster {cluster_id}, this node to {me.cluster_id}")
    if src_node != link_node:
        raise formats.ForeignFormat(where, f"it says it comes from node {src_node}")
    if (node, incarnation) != (me.node_id, me.incarnation):
        raise formats.ForeignFormat(where, f"it is for node {node} incarnation {incarnation:x}, this is {me}")
    taken: list[tuple[int, Letter]] = []
    for group, kind, raw in letters:
        decoder = _decoders.get(kind)
        if decoder is None:
            raise formats.NewerFormat(where, f"message kind {kind} is unknown to this version; upgrade this node")
        try:
            taken.append((group, decoder.decode(raw)))
        except msgspec.MsgspecError as error:
            raise formats.Damaged(where, f"{KINDS[kind].__name__} does not decode: {error}") from error
    return src_node, src_incarnation, now_ms, taken


def requests_in(data: bytes) -> list[int]:
    """The numbers of the forwarded requests in a frame of our own, which could not be sent. Not for frames of others: nothing is checked."""
    letters = _body_decoder.decode(memoryview(data)[_HEADER.size :])[6]
    return [_decoders[kind].decode(raw).request for _, kind, raw in letters if KINDS[kind] is Forward]
