"""Linearizable reads without a log entry. A read may be served at index i once a quorum has confirmed, after the read arrived, that this leader
still leads.

Leader: reads of a turn share one round; a round is a heartbeat with a number, and an answer to round n also confirms every round before it. Rounds
are numbered within a term, and a replica leads a term in one boot only, so (term, round) is never seen twice. A follower's question needs no round
where that follower and the leader are a quorum: the question itself says that the follower had not voted in a later term when it was asked.
Follower: reads of a turn share one question to the leader; its id is fresh per try and per boot, so that a late answer never fits a newer read.
Before the leader's first commit of its term nothing is confirmed: it does not know yet what is committed."""

from collections import deque
from typing import NamedTuple


class Local(NamedTuple):
    token: int


class Remote(NamedTuple):
    replica: int
    request: int


class Reads:
    __slots__ = ("_boot", "_counter", "asked", "round", "rounds", "waiting")

    def __init__(self, boot: int) -> None:
        self._boot = boot
        self._counter = 0
        self.waiting: list[Local | Remote] = []  # arrived since the last round or question
        self.round = 0
        self.rounds: deque[tuple[int, int, list[Local | Remote]]] = deque()  # (round, commit index when it started, reads)
        self.asked: dict[int, tuple[int, list[int]]] = {}  # request -> (tick when asked, tokens)

    def start_round(self, committed: int) -> int:
        self.round += 1
        self.rounds.append((self.round, committed, self.waiting))
        self.waiting = []
        return self.round

    def confirmed(self, round_number: int) -> list[tuple[Local | Remote, int]]:
        """A quorum answered this round: its reads and all earlier ones may be served at the index noted when their round began."""
        done: list[tuple[Local | Remote, int]] = []
        while self.rounds and self.rounds[0][0] <= round_number:
            _, index, reads = self.rounds.popleft()
            done.extend((read, index) for read in reads)
        return done

    def ask(self, tick: int) -> int:
        """One question to the leader for everything that waits."""
        self._counter += 1
        request = self._boot << 32 | self._counter
        self.asked[request] = (tick, [read.token for read in self.waiting if isinstance(read, Local)])
        self.waiting = []
        return request

    def answered(self, request: int) -> list[int]:
        return self.asked.pop(request, (0, []))[1]

    def expire(self, asked_before: int) -> list[int]:
        """Tokens of questions that were asked before that tick and never answered."""
        late = [request for request, (tick, _) in self.asked.items() if tick < asked_before]
        return [token for request in late for token in self.answered(request)]

    def abandon(self) -> list[int]:
        """Leadership or leader changed: nothing under way can be trusted. Returns the local tokens that must be asked again."""
        tokens = [read.token for read in self.waiting if isinstance(read, Local)]
        for _, _, reads in self.rounds:
            tokens.extend(read.token for read in reads if isinstance(read, Local))
        for _, asked in self.asked.values():
            tokens.extend(asked)
        self.waiting = []
        self.rounds.clear()
        self.asked.clear()
        self.round = 0
        return tokens
