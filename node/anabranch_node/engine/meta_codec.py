"""How questions to the meta group travel to another node (engine/forward.py)."""

import msgspec

from anabranch_node.core.cluster import commands, results
from anabranch_node.engine.forward import FAILURES, Codec

META = Codec(
    msgspec.msgpack.Decoder(commands.InitCluster | commands.RegisterNode | commands.PlaceMeta | commands.PlaceGroups).decode,
    msgspec.msgpack.Decoder(None).decode,  # the view is asked for by a call, not by a query
    msgspec.msgpack.Decoder(results.Result | FAILURES).decode,
)
