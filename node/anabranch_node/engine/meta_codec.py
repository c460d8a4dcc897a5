"""How questions to the meta group travel to another node (engine/forward.py)."""

import msgspec

from anabranch_node.core.cluster import commands, queries, results
from anabranch_node.engine.forward import FAILURES, Codec

META = Codec(
    msgspec.msgpack.Decoder(commands.Command).decode,
    msgspec.msgpack.Decoder(queries.Query).decode,
    msgspec.msgpack.Decoder(results.Result | FAILURES).decode,
)
