"""Bookkeeping of reads: each token is answered exactly once, at the index noted when its round began, and no id is ever used twice."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft.read_index import Local, Reads, Remote


@given(st.lists(st.tuples(st.sampled_from(["read", "round", "confirm", "abandon"]), st.integers(0, 5)), max_size=60))
def test_each_read_is_answered_once_and_not_before_its_round(steps: list[tuple[str, int]]) -> None:
    reads = Reads(boot=1)
    commit, token = 0, 0
    arrived_at: dict[int, int] = {}
    done: list[int] = []
    for step, number in steps:
        commit += number
        if step == "read":
            token += 1
            arrived_at[token] = commit
            reads.waiting.append(Local(token))
        elif step == "round":
            reads.start_round(commit)
        elif step == "confirm":
            waiting = {read.token for read in reads.waiting if isinstance(read, Local)}
            for read, index in reads.confirmed(reads.round - number):
                assert isinstance(read, Local) and read.token not in waiting
                assert index >= arrived_at[read.token], "served below what was committed when it arrived"
                done.append(read.token)
        else:
            done.extend(reads.abandon())
    done.extend(reads.abandon())
    assert sorted(done) == list(range(1, token + 1))
    assert reads.abandon() == []


def test_request_ids_are_fresh_per_try_and_per_boot() -> None:
    seen = set()
    for boot in (1, 2, 3):
        reads = Reads(boot)
        for tick in range(5):
            seen.add(reads.ask(tick))
            reads.abandon()
    assert len(seen) == 15


def test_a_question_is_answered_or_expires_but_not_both() -> None:
    reads = Reads(1)
    reads.waiting.append(Local(7))
    reads.waiting.append(Remote(2, 99))  # arrived when we led: not ours to ask
    request = reads.ask(tick=10)
    assert reads.expire(asked_before=10) == []
    assert reads.expire(asked_before=11) == [7]
    assert reads.answered(request) == []
