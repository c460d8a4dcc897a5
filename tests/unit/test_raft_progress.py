"""What a leader believes of one follower, after any sequence of what can be sent and answered: bounded, consistent, and never less than it knew."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft.progress import Progress, State

STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "accept", "refuse", "probe", "replicate", "snapshot"]), st.integers(0, 30), st.integers(0, 30)),
    max_size=60,
)
COUNT_MAX, BYTES_MAX = 3, 100


@given(st.integers(1, 10), STEPS)
def test_invariants(next_index: int, steps: list[tuple[str, int, int]]) -> None:
    progress = Progress(next_index)
    for step, one, two in steps:
        match = progress.match
        if step == "send":
            if progress.can_send(COUNT_MAX, BYTES_MAX):
                before = progress.next
                progress.sent(progress.next + one, 10 + two)
                assert progress.next == (before + one + 1 if progress.state is State.REPLICATE else before)
        elif step == "accept":
            news = progress.accepted(one)
            assert news == (one > match)
            assert not any(last <= one for last, _ in progress.in_flight)
        elif step == "refuse":
            state, sent = progress.state, progress.probe_sent
            taken = progress.refused(one, two)
            if not taken:
                assert (progress.state, progress.probe_sent) == (state, sent)
            else:
                assert progress.state is State.PROBE and progress.next <= max(one, match + 1)
        elif step == "probe":
            progress.become_probe()
        elif step == "replicate":
            progress.become_replicate()
        else:
            progress.become_snapshot(one)
        assert progress.match >= match
        assert progress.next > progress.match
        assert progress.in_flight_bytes == sum(size for _, size in progress.in_flight)
        assert len(progress.in_flight) <= COUNT_MAX
        assert progress.in_flight_bytes < BYTES_MAX + 40, "one packet may pass the bound, no second one"
        assert progress.state is State.REPLICATE or not progress.in_flight
        assert progress.state is not State.SNAPSHOT or not progress.can_send(COUNT_MAX, BYTES_MAX)


def test_an_old_refusal_is_ignored() -> None:
    progress = Progress(10)
    progress.accepted(9)
    progress.become_replicate()
    assert not progress.refused(5, 3)
    assert (progress.state, progress.next) == (State.REPLICATE, 10)


def test_after_a_snapshot_the_follower_is_asked_whether_it_has_it() -> None:
    progress = Progress(3)
    progress.become_snapshot(20)
    progress.become_probe()
    assert progress.next == 21
    progress.sent(21, 10)
    assert progress.refused(20, 2)
    assert progress.next == 2
