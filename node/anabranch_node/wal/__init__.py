"""The shared log of all groups of a node, as bytes: encoded and decoded here, performed elsewhere. Start reading at wal.py."""
