"""The checkers are checked: against each other on random histories, and rule by rule on small ones that a reader can judge alone."""

from collections.abc import Callable
from random import Random

import pytest

from tests.checkers import history as h
from tests.checkers import random_history, wgl
from tests.checkers.history import History, Op
from tests.checkers.stream_checker import RULES, BadHistory, check

SEEDS = 1_500
BROKEN_PER_SEED = 3


def rules_of(ops: list[Op], final: bytes | None) -> set[str]:
    return {violation.rule for violation in check(ops, {random_history.STREAM: final})}


def test_both_checkers_agree_on_random_histories_and_every_rule_is_needed() -> None:
    broken_alone: set[str] = set()
    wrong = 0
    compared = 0
    for seed in range(SEEDS):
        rng = Random(seed)
        ops, final = random_history.correct(rng, rng.randint(3, 10))
        assert rules_of(ops, final) == set(), seed
        assert wgl.is_linearizable(ops, final), seed
        for _ in range(BROKEN_PER_SEED):
            other_ops, other_final = random_history.broken(rng, ops, final)
            try:
                rules = rules_of(other_ops, other_final)
            except BadHistory:  # a lie that no recorder tells, such as the payload of one append in another
                continue
            linearizable = wgl.is_linearizable(other_ops, other_final)
            assert linearizable == (not rules), (seed, rules, [str(op) for op in other_ops], other_final)
            compared += 1
            wrong += not linearizable
            if len(rules) == 1:
                broken_alone |= rules
    assert compared > 0.9 * SEEDS * BROKEN_PER_SEED
    assert wrong > compared / 4, "most lies were harmless: the comparison shows little"
    # Without a rule, the histories that only it condemns would pass here and be refused by the search.
    assert broken_alone == RULES.keys()


# --- rule by rule --------------------------------------------------------------------------------------------------------------------

S = random_history.STREAM


class Story:
    """A history told in steps. Appends and reads take one moment each unless they are begun and ended apart."""

    def __init__(self, create: bool = True) -> None:
        self.history = History()
        self.clock = 0
        if create:
            self.create()

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def create(self, content_type: str = "t", offset: int = 0, existed: bool = False) -> Op:
        op = self.history.invoke_create("c", S, self.now(), content_type)
        h.created(op, self.now(), offset, existed)
        return op

    def begin(self, payload: bytes, producer: h.ProducerTuple | None = None) -> Op:
        return self.history.invoke_append("c", S, self.now(), payload, producer)

    def append(self, payload: bytes, start: int, producer: h.ProducerTuple | None = None, duplicate: bool = False, end: int | None = None) -> Op:
        op = self.begin(payload, producer)
        h.appended(op, self.now(), start, start + len(payload) if end is None else end, duplicate)
        return op

    def refuse(self, payload: bytes, refusal: str, detail: int = 0, producer: h.ProducerTuple | None = None) -> Op:
        op = self.begin(payload, producer)
        h.refused(op, self.now(), refusal, detail)
        return op

    def begin_read(self, offset: int) -> Op:
        return self.history.invoke_read("r", S, self.now(), offset)

    def read(self, offset: int, data: bytes, up_to_date: bool = True) -> Op:
        op = self.begin_read(offset)
        h.read(op, self.now(), data, offset + len(data), up_to_date)
        return op

    def judge(self, final: bytes | None) -> set[str]:
        rules = rules_of(self.history.ops, final)
        assert wgl.is_linearizable(self.history.ops, final) == (not rules), rules
        return rules


def test_a_plain_story_is_accepted() -> None:
    story = Story()
    story.append(b"aa", 0)
    story.read(0, b"aa")
    story.append(b"bb", 2)
    story.read(0, b"aa", up_to_date=False)
    story.read(2, b"bb")
    assert story.judge(b"aabb") == set()


def foreign(story: Story) -> bytes:
    story.append(b"aa", 0)
    return b"aaxx"


def twice(story: Story) -> bytes:
    story.append(b"aa", 0)
    return b"aaaa"


def unknown_twice(story: Story) -> bytes:
    story.begin(b"aa")
    return b"aaaa"


def lost(story: Story) -> bytes:
    story.append(b"aa", 0)
    return b""


def lost_duplicate(story: Story) -> bytes:
    story.begin(b"aa", ("p", 0, 0))
    story.append(b"aa", 0, ("p", 0, 0), duplicate=True)
    return b""


def offset(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.append(b"bb", 0)
    return b"aabb"


def refused(story: Story) -> bytes:
    story.refuse(b"aa", "NotLeader")
    return b"aa"


def unwritten(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 0, 0), duplicate=True)
    return b"aa"


def claimed_twice(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 0, 0))
    story.append(b"aa", 0, ("p", 0, 0))
    return b"aa"


def created_twice(story: Story) -> bytes:
    ops = [story.history.invoke_create("d", S, story.now(), "t"), story.history.invoke_create("e", S, story.now(), "t")]
    h.created(ops[0], story.now(), 0, existed=False)
    return b""


def created_as_another_type(story: Story) -> bytes:
    story.create("u", existed=True)
    return b""


def refused_for_its_own_type(story: Story) -> bytes:
    op = story.history.invoke_create("c", S, story.now(), "t")
    h.refused(op, story.now(), h.STREAM_EXISTS)
    return b""


def sequence_gap_accepted(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 0, 0))
    story.append(b"bb", 2, ("p", 0, 2))
    return b"aabb"


def sequence_reordered(story: Story) -> bytes:
    first, second = story.begin(b"aa", ("p", 0, 0)), story.begin(b"bb", ("p", 0, 1))
    h.appended(second, story.now(), 0, 2, False)
    h.appended(first, story.now(), 2, 4, False)
    return b"bbaa"


def epoch_fell(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 1, 0))
    story.append(b"bb", 2, ("p", 0, 0))
    return b"aabb"


def read_other_bytes(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.read(0, b"ab")
    return b"aa"


def read_then_gone(story: Story) -> bytes:
    story.begin(b"aa")
    story.read(0, b"aa")
    return b""


def read_half_a_message(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.read(0, b"a", up_to_date=False)
    return b"aa"


def read_nothing_of_something(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.read(0, b"", up_to_date=False)
    return b"aa"


def read_says_there_is_more(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.read(0, b"aa", up_to_date=False)
    return b"aa"


def order_of_two_appends(story: Story) -> bytes:
    story.append(b"aa", 2)
    story.append(b"bb", 0)
    return b"bbaa"


def order_of_an_unknown_append(story: Story) -> bytes:
    story.append(b"aa", 2)
    story.begin(b"bb")
    return b"bbaa"


def order_across_a_read(story: Story) -> bytes:
    first = story.begin(b"aa")
    story.read(0, b"")
    story.append(b"bb", 2)
    story.read(0, b"aabb")
    late = story.begin_read(0)
    h.appended(first, story.now(), 0, 2, False)
    h.read(late, story.now(), b"aa", 2, up_to_date=True)
    return b"aabb"


def append_seen_before_it_was_invoked(story: Story) -> bytes:
    story.read(0, b"aa")
    story.append(b"aa", 0)
    return b"aa"


def stale_after_an_append(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.read(0, b"")
    return b"aa"


def stale_after_a_read(story: Story) -> bytes:
    story.begin(b"aa")
    story.read(0, b"aa")
    story.read(0, b"")
    return b"aa"


def stale_offset_beyond_tail(story: Story) -> bytes:
    story.append(b"aa", 0)
    op = story.begin_read(2)
    h.refused(op, story.now(), h.OFFSET_BEYOND_TAIL, 0)
    return b"aa"


def stale_not_found(story: Story) -> bytes:
    story.refuse(b"aa", h.STREAM_NOT_FOUND)
    return b""


def stale_gap(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 0, 0))
    story.refuse(b"bb", h.SEQUENCE_GAP, 0, ("p", 0, 1))
    return b"aa"


def stale_create(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.create(offset=0, existed=True)
    return b"aa"


def stale_duplicate(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 0, 0))
    story.append(b"bb", 2, ("p", 0, 1))
    story.append(b"aa", 0, ("p", 0, 0), duplicate=True)  # the table has forgotten this: it answers the tail by now
    return b"aabb"


def duplicate_with_other_offsets(story: Story) -> bytes:
    story.append(b"aa", 0)
    story.append(b"bb", 2, ("p", 0, 0))
    story.append(b"bb", 0, ("p", 0, 0), duplicate=True)
    return b"aabb"


def gap_that_never_was(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 0, 0))
    story.refuse(b"bb", h.SEQUENCE_GAP, 3, ("p", 0, 5))
    return b"aa"


def epoch_that_never_was(story: Story) -> bytes:
    story.append(b"aa", 0, ("p", 0, 0))
    story.refuse(b"bb", h.STALE_EPOCH, 7, ("p", 0, 1))
    return b"aa"


def bad_start_of_an_unknown_producer(story: Story) -> bytes:
    story.refuse(b"bb", h.BAD_EPOCH_START, 0, ("p", 1, 1))
    return b""


CASES: list[tuple[str, Callable[[Story], bytes]]] = [
    ("foreign", foreign),
    ("twice", twice),
    ("twice", unknown_twice),
    ("lost", lost),
    ("lost", lost_duplicate),
    ("offset", offset),
    ("refused", refused),
    ("unwritten", unwritten),
    ("claimed-twice", claimed_twice),
    ("claimed-twice", created_twice),
    ("create", created_as_another_type),
    ("create", refused_for_its_own_type),
    ("sequence", sequence_gap_accepted),
    ("sequence", sequence_reordered),
    ("sequence", epoch_fell),
    ("read", read_other_bytes),
    ("read", read_then_gone),
    ("read", read_half_a_message),
    ("read", read_nothing_of_something),
    ("read", read_says_there_is_more),
    ("order", order_of_two_appends),
    ("order", order_of_an_unknown_append),
    ("order", append_seen_before_it_was_invoked),
    ("stale", order_across_a_read),
    ("stale", stale_after_an_append),
    ("stale", stale_after_a_read),
    ("stale", stale_offset_beyond_tail),
    ("stale", stale_not_found),
    ("stale", stale_gap),
    ("stale", stale_create),
    ("stale", stale_duplicate),
    ("answer", duplicate_with_other_offsets),
    ("answer", gap_that_never_was),
    ("answer", epoch_that_never_was),
    ("answer", bad_start_of_an_unknown_producer),
]


@pytest.mark.parametrize(("rule", "tell"), CASES, ids=[tell.__name__ for _, tell in CASES])
def test_each_rule_condemns(rule: str, tell: Callable[[Story], bytes]) -> None:
    story = Story()
    final = tell(story)
    assert rule in story.judge(final)


def test_every_rule_has_a_story() -> None:
    assert {rule for rule, _ in CASES} == RULES.keys()


def test_a_violation_names_its_ops_and_offsets() -> None:
    story = Story()
    story.append(b"aa", 0)
    story.read(0, b"")
    (violation,) = check(story.history.ops, {S: b"aa"})
    assert str(violation) == (
        "b/s: stale: #2 [5..6] client r read b/s from 0 -> [0:0] up to date saw a state before that of "
        "#1 [3..4] client c append b/s b'aa' -> [0:2], which completed before it was invoked"
    )


# --- what must be allowed ------------------------------------------------------------------------------------------------------------


def test_an_unknown_append_may_be_there_or_not() -> None:
    for final in (b"", b"aa"):
        story = Story()
        story.begin(b"aa")
        assert story.judge(final) == set()


def test_an_unknown_append_may_take_effect_long_after() -> None:
    story = Story()
    unknown = story.begin(b"aa")
    h.unknown(unknown, story.now())
    story.append(b"bb", 0)
    story.read(0, b"bb")
    assert story.judge(b"bbaa") == set()


def test_concurrent_appends_may_be_in_any_order() -> None:
    for first, final in ((0, b"aabb"), (2, b"bbaa")):
        story = Story()
        a, b = story.begin(b"aa"), story.begin(b"bb")
        h.appended(a, story.now(), first, first + 2, False)
        h.appended(b, story.now(), 2 - first, 4 - first, False)
        assert story.judge(final) == set()


def test_a_refused_try_does_not_hide_the_one_that_wrote() -> None:
    story = Story()
    claim = ("p", 0, 0)
    story.refuse(b"aa", "NotLeader", producer=claim)
    story.begin(b"aa", claim)
    story.append(b"aa", 0, claim, duplicate=True)
    assert story.judge(b"aa") == set()


def test_a_late_duplicate_answers_the_tail() -> None:
    story = Story()
    story.append(b"aa", 0, ("p", 0, 0))
    story.append(b"bb", 2, ("p", 0, 1))
    story.append(b"aa", 4, ("p", 0, 0), duplicate=True, end=4)
    assert story.judge(b"aabb") == set()


def test_producer_refusals_of_the_protocol() -> None:
    story = Story()
    story.refuse(b"a1", h.SEQUENCE_GAP, 0, ("p", 4, 1))
    story.append(b"aa", 0, ("p", 1, 0))
    story.refuse(b"b1", h.SEQUENCE_GAP, 1, ("p", 1, 2))
    story.refuse(b"c1", h.STALE_EPOCH, 1, ("p", 0, 0))
    story.refuse(b"d1", h.BAD_EPOCH_START, 0, ("p", 2, 1))
    story.append(b"bb", 2, ("p", 2, 0))
    assert story.judge(b"aabb") == set()


def test_a_stream_that_was_never_created() -> None:
    story = Story(create=False)
    story.refuse(b"aa", h.STREAM_NOT_FOUND)
    assert story.judge(None) == set()
    assert story.judge(b"") == {"unwritten"}


def test_an_unknown_create_takes_the_type_that_others_found() -> None:
    story = Story(create=False)
    for content_type in ("t", "u"):
        story.history.invoke_create("c", S, story.now(), content_type)
    story.create("u", existed=True)
    refused_create = story.history.invoke_create("c", S, story.now(), "t")
    h.refused(refused_create, story.now(), h.STREAM_EXISTS)
    assert story.judge(b"") == set()


# --- misuse and size -----------------------------------------------------------------------------------------------------------------


def test_a_recording_that_proves_nothing_is_refused() -> None:
    story = Story()
    story.begin(b"aa")
    story.begin(b"aa")
    with pytest.raises(BadHistory, match="reuses the payload"):
        story.judge(b"aa")
    story = Story()
    story.begin(b"aa", ("p", 0, 0))
    story.begin(b"bb", ("p", 0, 0))
    with pytest.raises(BadHistory, match="another payload"):
        story.judge(b"aa")
    story = Story()
    story.begin(b"aa")
    story.begin(b"aab")
    with pytest.raises(BadHistory, match="prefix"):
        story.judge(b"aa")
    with pytest.raises(BadHistory, match="no final read"):
        check(Story().history.ops, {})
    story = Story()
    story.append(b"aa", 0).completed = 1
    with pytest.raises(BadHistory, match="completed at 1"):
        story.judge(b"aa")


def test_streams_are_judged_apart() -> None:
    history = History()
    for number, name in enumerate(("b/1", "b/2")):
        h.created(history.invoke_create("c", name, number * 10, "t"), number * 10 + 1, 0, existed=False)
        h.appended(history.invoke_append("c", name, number * 10 + 2, b"aa"), number * 10 + 3, 0, 2, duplicate=False)
    assert check(history.ops, {"b/1": b"aa", "b/2": b"aa"}) == []
    assert [v.stream for v in check(history.ops, {"b/1": b"aa", "b/2": b""})] == ["b/2"]


def test_a_long_history_and_one_lie_in_it() -> None:
    ops, finals = random_history.long(Random(1), stream_count=5, op_count=8_000)
    assert check(ops, finals) == []
    acked = [op for op in ops if op.kind == h.APPEND and op.outcome == h.OK and not op.flag]
    victim = acked[len(acked) // 2]
    finals[victim.stream] = (finals[victim.stream] or b"").replace(victim.payload, b"")
    assert f"#{victim.number} " in "".join(v.text for v in check(ops, finals) if v.rule == "lost")
