"""The `anabranch` command, one file per family of verbs. It speaks HTTP to nodes and starts processes.

It imports config and anabranch_proto, never drivers."""
