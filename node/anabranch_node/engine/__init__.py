"""Many groups on one node, pure: one turn of the loop. Start reading at host.py."""
