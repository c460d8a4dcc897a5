"""Raft for one group, sans-IO: no clock, no randomness of its own, no sockets, no files. Start reading at raft.py."""
