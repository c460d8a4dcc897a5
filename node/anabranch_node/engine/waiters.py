"""Requests between propose and commit, by (index, term). Before us: group.py proposed them. After us: each gets exactly one answer.

Another entry at that index, or a leader that lost its office, means that the outcome is unknown; never that it succeeded.
Bounded by Raft's uncommitted bytes: there is no waiter without an uncommitted entry."""

from collections.abc import Sequence
from typing import Any

from anabranch_node.core.effects import Answer
from anabranch_node.core.errors import OutcomeUnknown


class Waiters:
    __slots__ = ("_at", "term")

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int, list[int], list[Any]]] = {}  # index -> (term, when it was proposed, tokens, commands)
        self.term = 0

    def __bool__(self) -> bool:
        return bool(self._at)

    def __len__(self) -> int:
        return sum(len(tokens) for _, _, tokens, _ in self._at.values())

    def add(self, index: int, term: int, now_ms: int, tokens: list[int], commands: list[Any]) -> None:
        self.term = term
        self._at[index] = (term, now_ms, tokens, commands)

    def take(self, index: int, term: int) -> tuple[int, list[int], list[Any]] | list[Answer] | None:
        """Entry (index, term) is committed: when it was proposed, and the requests it carries; or, if we waited for another entry there, their
        answers; or nobody waits."""
        waiting = self._at.pop(index, None)
        if waiting is None:
            return None
        waited_term, proposed_ms, tokens, commands = waiting
        if waited_term != term:
            return [Answer(token, OutcomeUnknown("another leader's entry took its place in the log")) for token in tokens]
        return proposed_ms, tokens, commands

    def fail(self, reason: str) -> list[Answer]:
        answers = [Answer(token, OutcomeUnknown(reason)) for _, _, tokens, _ in self._at.values() for token in tokens]
        self._at.clear()
        return answers


def pair(tokens: Sequence[int], results: Sequence[Any]) -> list[Answer]:
    return [Answer(token, result) for token, result in zip(tokens, results, strict=True)]
