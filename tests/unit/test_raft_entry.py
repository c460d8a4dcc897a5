"""Entries as bytes: blocks are joined and split without loss, and a damaged block is refused as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft import entry as entries_of

ENTRIES = st.lists(st.builds(entries_of.encode, st.integers(0, 2**64 - 1), st.integers(0, 255), st.binary(max_size=20)), max_size=6)


@given(ENTRIES)
def test_split_undoes_join(entries: list[bytes]) -> None:
    assert entries_of.split(b"".join(entries)) == entries


@given(st.integers(0, 2**64 - 1), st.integers(0, 255), st.binary(max_size=50))
def test_fields(term: int, version: int, payload: bytes) -> None:
    entry = entries_of.encode(term, version, payload)
    assert (entries_of.term_of(entry), entries_of.version_of(entry), entries_of.payload_of(entry)) == (term, version, payload)


@given(ENTRIES.filter(bool), st.data())
def test_a_cut_block_is_refused_or_ends_at_an_entry(entries: list[bytes], data: st.DataObject) -> None:
    block = b"".join(entries)
    cut = data.draw(st.integers(0, len(block) - 1))
    ends = [sum(map(len, entries[:count])) for count in range(len(entries))]
    if cut in ends:
        assert entries_of.split(block[:cut]) == entries[: ends.index(cut)]
    else:
        with pytest.raises(ValueError):
            entries_of.split(block[:cut])
