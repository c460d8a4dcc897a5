"""The state machine of a group of streams: pure and deterministic. Start reading at machine.py."""
