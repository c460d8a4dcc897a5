"""A request's life, pure: admit, ReadIndex, plan, wait, answer, rotate. Start reading at service.py."""
