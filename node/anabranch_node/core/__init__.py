"""One group, pure: Raft, the stream machine, and the vocabulary between engine and world. Start reading at effects.py."""
