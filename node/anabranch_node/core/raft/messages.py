"""What replicas of one group say to each other. raft.py steps them; engine/envelope.py gives them bytes and names the group.

`to` and `src` are replica ids; `term` is the sender's term, except in PreVote and a granted PreVoteAnswer, where it is the term that would be.
On the wire a message is an array: fields are only ever appended, with defaults, and the numbers in KINDS are never reused."""

from typing import NamedTuple


class PreVote(NamedTuple):
    """Would you vote for me in `term`? Changes nothing at the receiver."""

    to: int
    src: int
    term: int
    last_index: int
    last_term: int


class PreVoteAnswer(NamedTuple):
    to: int
    src: int
    term: int
    granted: bool


class Vote(NamedTuple):
    to: int
    src: int
    term: int
    last_index: int
    last_term: int
    transfer: bool  # the leader asked for this election: do not protect it


class VoteAnswer(NamedTuple):
    to: int
    src: int
    term: int
    granted: bool


class Append(NamedTuple):
    to: int
    src: int
    term: int
    prev_index: int
    prev_term: int
    commit: int
    block: bytes  # entries laid end to end (entry.py); empty: a question whether the logs meet here


class AppendAnswer(NamedTuple):
    to: int
    src: int
    term: int
    success: bool
    index: int  # type: ignore[assignment]  # success: durable and equal to the leader's log through here; else the prev_index that did not fit
    hint_index: int = 0  # refused: the logs can only agree at or below here ...
    hint_term: int = 0  # ... where our term is this


class Heartbeat(NamedTuple):
    to: int
    src: int
    term: int
    commit: int  # never above what this follower is known to hold
    read_round: int


class HeartbeatAnswer(NamedTuple):
    to: int
    src: int
    term: int
    read_round: int


class Committed(NamedTuple):
    """The commit index moved. Never above what this follower acknowledged, so it overtakes nothing; needs no answer."""

    to: int
    src: int
    term: int
    commit: int


class TimeoutNow(NamedTuple):
    """You are caught up: start an election at once."""

    to: int
    src: int
    term: int


class ReadIndexAsk(NamedTuple):
    to: int
    src: int
    term: int
    request: int  # fresh for each try and each boot


NOT_LEADING = -1


class ReadIndexAnswer(NamedTuple):
    to: int
    src: int
    term: int
    request: int
    index: int  # type: ignore[assignment]  # or NOT_LEADING: ask somebody else


class SnapshotChunk(NamedTuple):
    """A piece of the leader's snapshot file of (index, snapshot_term)."""

    to: int
    src: int
    term: int
    index: int  # type: ignore[assignment]
    snapshot_term: int
    offset: int
    size: int
    data: bytes


class SnapshotAnswer(NamedTuple):
    """`have` bytes of that file are held; -1: they were useless, start over."""

    to: int
    src: int
    term: int
    index: int  # type: ignore[assignment]
    snapshot_term: int
    have: int


Message = (
    PreVote
    | PreVoteAnswer
    | Vote
    | VoteAnswer
    | Append
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | TimeoutNow
    | ReadIndexAsk
    | ReadIndexAnswer
    | SnapshotChunk
    | SnapshotAnswer
    | Committed
)

KINDS: dict[int, type[Message]] = {
    1: PreVote,
    2: PreVoteAnswer,
    3: Vote,
    4: VoteAnswer,
    5: Append,
    6: AppendAnswer,
    7: Heartbeat,
    8: HeartbeatAnswer,
    9: TimeoutNow,
    10: ReadIndexAsk,
    11: ReadIndexAnswer,
    12: SnapshotChunk,
    13: SnapshotAnswer,
    14: Committed,
}

FROM_LEADER = (Append, Heartbeat, Committed, SnapshotChunk, TimeoutNow)
"""Only the leader of a term sends these, so their sender is that term's leader."""
