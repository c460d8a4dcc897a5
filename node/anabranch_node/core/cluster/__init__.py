"""The meta group: which nodes there are and where replicas live. Start reading at machine.py."""
