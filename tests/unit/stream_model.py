"""Inputs for the tests that compare the stream machine with tests/checkers/stream_model.py: commands and entries drawn by Hypothesis.

test_stream_machine.py and test_stream_snapshot.py share them."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import strategies as st

from anabranch_node.core.stream import producers, stream
from anabranch_node.core.stream.commands import Append, Create, Delete, Expire, Producer, Touch

PRODUCERS_MAX = 3
IDLE_MS = 100

NAMES = ["b/one", "b/two", "c/one"]
names = st.sampled_from(["b/one"] * 6 + ["b/two"] * 2 + ["c/one"])
# Mostly within one producer's idle time; a late one ends all of it, and windows with it.
times = st.sampled_from([0] * 12 + [50] * 4 + [120, 400, 1100, 1130, 2000, 2300, 4000])
claims = st.builds(Producer, st.sampled_from(["p", "q", "r", "s", "t"]), st.sampled_from([0, 0, 0, 1, 2]), st.sampled_from([0, 0, 0, 1, 1, 2, 3]))
content_types = st.sampled_from(["text/plain"] * 4 + ["Text/Plain; charset=utf-8", "application/json"])
messages = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=5) | st.sampled_from([[], [b"x" * 40]])
incarnations = st.builds(lambda index, position: index << 16 | position, st.sampled_from([1, 1, 1, 2, 3]), st.sampled_from([0, 0, 0, 1]))


def lengths_of(parts: list[bytes]) -> bytes:
    return b"" if len(parts) < 2 else struct.pack(f"<{len(parts)}I", *map(len, parts))


def _create(name: str, content_type: str, now_ms: int, window: tuple[int | None, int | None], closed: bool, parts: list[bytes]) -> Create:
    ttl_s, expires_at_ms = window
    expires_at = "" if expires_at_ms is None else f"time {expires_at_ms}"
    return Create(name, content_type, now_ms, ttl_s, expires_at_ms, expires_at, closed, b"".join(parts), lengths_of(parts))


@st.composite
def _appends(draw: st.DrawFn) -> Append:
    parts = draw(messages)
    return Append(
        draw(names),
        b"".join(parts),
        draw(times),
        draw(st.none() | claims),
        draw(st.sampled_from([""] * 5 + ["text/plain", "TEXT/PLAIN;x=y", "application/json"])),
        lengths_of(parts),
        draw(st.sampled_from([False] * 15 + [True])),
        draw(st.sampled_from([None] * 3 + ["a", "b", "é", "10", "9"])),
        draw(st.sampled_from(["", "", "k", "l"])),
        draw(st.none() | times),
    )


windows = st.sampled_from([(None, None)] * 9 + [(0, None), (1, None), (2, None), (None, 300), (None, 2000)])
creates = st.builds(_create, names, content_types, times, windows, st.sampled_from([False] * 5 + [True]), messages | st.just([]))
lives = st.one_of(
    creates, creates, st.builds(Touch, names, incarnations, times), st.builds(Expire, names, incarnations, times), st.builds(Delete, names, times)
)
plain_claims = st.builds(Append, names, st.just(b"x"), times, claims)
commands = st.integers(0, 9).flatmap(lambda kind: lives if kind < 3 else plain_claims if kind < 6 else _appends())
firsts = st.sampled_from([Create("b/one", "text/plain", 0), Create("b/one", "text/plain", 0, 1)])
entries = st.tuples(firsts, st.lists(st.lists(commands, max_size=6), max_size=25)).map(lambda drawn: [[drawn[0]], *drawn[1]])


@contextmanager
def small_limits() -> Iterator[None]:
    """Chunks of a few messages and tables of a few producers, so that short inputs reach every limit."""
    with (
        patch.object(stream, "CHUNK_BYTES", 16),
        patch.object(stream, "CHUNK_MESSAGES", 4),
        patch.object(producers, "PRODUCERS_PER_STREAM_MAX", PRODUCERS_MAX),
        patch.object(producers, "PRODUCER_IDLE_MS", IDLE_MS),
    ):
        yield
