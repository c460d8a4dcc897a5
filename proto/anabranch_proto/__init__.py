"""Contracts: bytes and names that two programs must agree on. Everything may import this; this imports nothing of ours."""
