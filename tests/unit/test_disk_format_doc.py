"""docs/disk-format.md cannot rot: its layouts are the codecs' own, its numbers the constants', its hex blocks what the encoders write today."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from anabranch_node.core.effects import SegmentCreate, WalWrite
from anabranch_node.core.raft import entry, membership
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import Append, Heartbeat
from anabranch_node.core.raft.records import EntriesAppended, HardState, SnapshotMark
from anabranch_node.core.stream import commands, snapshot
from anabranch_node.core.stream.machine import StreamMachine, UnknownCommandVersion
from anabranch_node.core.stream.producers import ProducerState
from anabranch_node.drivers import data_dir, wal_disk
from anabranch_node.engine import envelope, snapshots
from anabranch_node.wal import batch, record, segment, snapshot_file
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.recovery import SegmentFile, recover
from anabranch_node.wal.segment import Checkpoint, ReplicaState, segment_name
from anabranch_node.wal.snapshot_file import SnapshotHeader
from anabranch_node.wal.wal import Wal, WalEffect
from anabranch_proto import formats
from anabranch_proto.checksum import crc32c
from anabranch_proto.formats import Damaged, Format, NewerFormat
from anabranch_proto.ids import NodeIdentity

TEXT = (Path(__file__).parents[2] / "docs" / "disk-format.md").read_text(encoding="utf-8")
BLOCKS = {(kind, name): body.splitlines() for kind, name, body in re.findall(r"^```(\w+) ([\w-]+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)}
ME = NodeIdentity("demo", 1, 0xC0FFEE)
OPTIONS = WalOptions(segment_bytes=4096)

LAYOUTS = {
    "segment-header": segment._HEAD,
    "batch-header": batch._HEAD,
    "run": batch._RUN,
    "record-head": record.HEAD,
    "entry": entry.HEADER,
    "configuration": membership._COUNTS,
    "sync-mark": segment._MARK,
    "snapshot-start": snapshot_file._START,
    "snapshot-chunk": snapshot_file._CHUNK,
    "snapshot-trailer": snapshot_file._TRAILER,
    "frame-header": envelope._HEADER,
}
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "4s": "4s", "16s": "16s"}


def table(first_column: str) -> list[list[str]]:
    """The cells below the header that starts so, without backticks."""
    rows = TEXT.split(f"\n| {first_column} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def formats_in(module: ModuleType) -> list[Format]:
    return [value for value in vars(module).values() if isinstance(value, Format)]


# --- layouts and numbers ---------------------------------------------------------------------------------------------------------


def test_every_layout_is_known() -> None:
    assert {name for kind, name in BLOCKS if kind == "layout"} == set(LAYOUTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_the_codecs_own(name: str) -> None:
    codec = LAYOUTS[name]
    written = "<"
    for line in BLOCKS["layout", name]:
        at, kind, _ = line.split(maxsplit=2)
        assert int(at) == struct.calcsize(written), line
        written += CODES[kind] if kind != "..." else ""
    assert written == codec.format


def test_magics_and_versions() -> None:
    known = {(known.name, known.magic, known.version) for known in formats_in(formats) + formats_in(segment)}
    assert {(name, magic.encode(), int(version)) for name, magic, version, _ in table("format")} == known
    in_blocks = {magic for (kind, _), body in BLOCKS.items() if kind == "layout" for magic in re.findall(r' magic "(\w+)"', "\n".join(body))}
    assert {magic.encode() for magic in in_blocks} == {magic for _, magic, _ in known} | {snapshot_file._END_MAGIC}


def test_record_kinds() -> None:
    rows = table("kind")
    assert [int(number) for number, _, _ in rows] == [getattr(record, name) for _, name, _ in rows]
    for kind in range(256):
        try:
            record.parse(kind, bytes(64), "here")
            known = True
        except record.BadRecord:
            known = True
        except NewerFormat:
            known = False
        assert known == (str(kind) in [number for number, _, _ in rows]), kind


def test_entry_versions() -> None:
    rows = table("version")
    assert [int(number) for number, _, _ in rows] == [getattr(entry, name) for _, name, _ in rows]
    for version in set(range(256)) - {int(number) for number, _, _ in rows}:
        with pytest.raises(UnknownCommandVersion):
            StreamMachine().apply(1, version, b"")


def fields(name: str) -> list[tuple[int, str, tuple[str, ...]]]:
    return [(int(number), kind, tuple(rest)) for number, kind, *rest in map(str.split, BLOCKS["fields", name])]


def test_tags_and_fields() -> None:
    def tagged(*kinds: Any) -> list[tuple[int, str, tuple[str, ...]]]:
        return [(kind.__struct_config__.tag, kind.__name__, kind.__struct_fields__) for kind in kinds]

    assert fields("commands") == tagged(*commands.Command.__args__)
    assert fields("snapshot") == tagged(*snapshot.Record.__args__)
    assert fields("messages") == [(number, kind.__name__, kind._fields) for number, kind in envelope.KINDS.items()]
    assert "`[id, epoch, seq]`" in TEXT and commands.Producer.__struct_fields__ == ("id", "epoch", "seq")
    assert f"`[id, [{', '.join(ProducerState.__struct_fields__)}]]`" in TEXT


def test_other_figures() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert (batch.SECTOR, wal_disk.SYNC_MARK_FILE_BYTES, WalOptions().segment_bytes) == (512, 4096, 64 << 20)
    assert (snapshot_file.HEADER_BYTES_MAX, snapshot_file.CHUNK_RAW_BYTES_MAX) == (1 << 20, 4 << 20)
    assert (snapshots.MACHINE_VERSION, snapshot.SLICE_VERSION, data_dir.FORMAT) == (1, 1, 1)
    assert ReplicaState.__struct_fields__ == ("group", "replica", "hard", "mark", "last_index", "fenced")
    assert HardState._fields == ("term", "vote", "commit") and SnapshotMark._fields == ("index", "term", "config", "first_index", "prev_term")
    assert SnapshotHeader.__struct_fields__ == ("cluster_id", "group", "index", "term", "config", "machine_version")


def test_the_checksum_of_the_identity() -> None:
    assert data_dir._identity_crc(ME) == crc32c(b'[1,"demo",1,"00000000000000000000000000c0ffee"]')
    assert data_dir._boot_crc(9) == crc32c(b"[1,9]")


# --- what an old reader does with fields it does not know ---------------------------------------------------------------------------


def longer(value: Any) -> bytes:
    return msgspec.msgpack.encode([*msgspec.msgpack.decode(msgspec.msgpack.encode(value)), 0])


@pytest.mark.parametrize("value", [Checkpoint([], []), ReplicaState(1, 1, None, None, 0, ""), SnapshotHeader("demo", 1, 1, 1, b"", 1)])
def test_extra_fields_that_are_ignored(value: Any) -> None:
    assert msgspec.msgpack.decode(longer(value), type=type(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        HardState(0, 0, 0),
        SnapshotMark(0, 0, b"", 1, 0),
        Heartbeat(1, 2, 3, 4, 5),
        commands.Create("b/s", "text/plain", 0),
        commands.Producer("p", 0, 0),
        snapshot.MachineEnd(0),
        snapshot.Slice(1, 0, msgspec.Raw(b"\x90")),
    ],
)
def test_extra_fields_that_are_refused(value: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(longer(value), type=type(value))


def test_a_frame_takes_incarnations_of_64_bits() -> None:
    envelope.encode(ME, 2, (1 << 64) - 1, 0, [])
    with pytest.raises(OverflowError):
        envelope.encode(ME, 2, 1 << 64, 0, [])


# --- the hex blocks -------------------------------------------------------------------------------------------------------------------


def perform(effects: list[WalEffect], files: dict[int, bytearray]) -> None:
    for effect in effects:
        if isinstance(effect, SegmentCreate):
            files[effect.segment] = bytearray(effect.data.ljust(OPTIONS.segment_bytes, b"\0"))
        else:
            assert isinstance(effect, WalWrite), effect
            files[effect.segment][effect.offset : effect.offset + len(effect.data)] = effect.data


def first_entry() -> bytes:
    return entry.encode(1, entry.NOOP, b"")


def second_entry() -> bytes:
    create = commands.Create("b/s", "text/plain", 1000)
    append = commands.Append("b/s", b"hi", 1000, commands.Producer("p", 0, 0))
    return entry.encode(1, entry.COMMANDS_V1, commands.encode_commands([create, append]))


def sample_segment() -> bytes:
    files: dict[int, bytearray] = {}
    wal = Wal(ME, OPTIONS)
    perform(wal.open(), files)
    wal.stage(3, 7, SnapshotMark(0, 0, membership.encode(Configuration((7, 8))), 1, 0))
    perform(wal.seal()[1], files)
    wal = Wal(ME, OPTIONS, recover(ME, [SegmentFile(1, segment_name(1), bytes(files[1]))], None, OPTIONS))
    perform(wal.open(), files)
    wal.stage(3, 7, HardState(1, 7, 0))
    wal.stage(3, 7, EntriesAppended(1, [first_entry(), second_entry()]))
    perform(wal.seal()[1], files)
    return bytes(files[2])


def sample_frame() -> bytes:
    return envelope.encode(ME, 2, 0xBEEF, 1000, [(3, Append(8, 7, 1, 0, 0, 0, first_entry())), (4, Heartbeat(12, 11, 5, 40, 2))])


SAMPLES: dict[str, Callable[[], bytes]] = {"segment": sample_segment, "frame": sample_frame}
HEX_LINE = re.compile(r"([0-9a-f]{4})  (?:((?:[0-9a-f]{2} )+) +(\S.*)|zeros +up to ([0-9a-f]{4}))")


def bytes_of(lines: list[str]) -> bytes:
    """What a hex block spells. Each line begins where the one before it ends, and a number after `=` is what the line's bytes say."""
    data = b""
    for line in lines:
        if line.startswith("# "):
            continue
        match = HEX_LINE.fullmatch(line)
        assert match, line
        at, spelt, note, stop = match.groups()
        assert int(at, 16) == len(data), line
        piece = bytes.fromhex(spelt) if spelt else bytes(int(stop, 16) - len(data))
        if claim := re.search(r" = (\S+)$", note or ""):
            assert int(claim[1], 0) == int.from_bytes(piece, "little"), line
        data += piece
    return data


def test_every_hex_block_is_known() -> None:
    assert {name for kind, name in BLOCKS if kind == "hex"} == set(SAMPLES)
    assert len(BLOCKS) * 2 == len(re.findall(r"^```", TEXT, re.MULTILINE)), "a block without a kind and a name is not checked"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_hex_block_is_what_the_encoders_write(name: str) -> None:
    spelt, written = bytes_of(BLOCKS["hex", name]), SAMPLES[name]()
    differs = next((at for at, (left, right) in enumerate(zip(spelt, written, strict=False)) if left != right), min(len(spelt), len(written)))
    assert spelt == written, f"at {differs:04x} the document says {spelt[differs:][:16].hex(' ')}, the code {written[differs:][:16].hex(' ')}"


def test_the_seeds_of_the_segment() -> None:
    seed = record.identity_seed(ME)
    assert seed == crc32c(b"demo\0" + b"1\0" + b"c0ffee")
    assert f"{seed:08x}" in TEXT and f"{record.segment_seed(seed, 2):08x}" in TEXT


def test_the_documented_bytes_read_back() -> None:
    found = recover(ME, [SegmentFile(2, segment_name(2), bytes_of(BLOCKS["hex", "segment"]))], None, OPTIONS)
    replica = found.groups[3, 7]
    assert (replica.hard, replica.entries, replica.fenced, found.torn) == (HardState(1, 7, 0), [first_entry(), second_entry()], "", None)
    peer = NodeIdentity("demo", 2, 0xBEEF)
    assert [group for group, _ in envelope.decode(bytes_of(BLOCKS["hex", "frame"]), peer, 1)[3]] == [3, 4]


def test_a_newer_version_is_refused_by_name() -> None:
    data = bytearray(bytes_of(BLOCKS["hex", "segment"]))
    data[4] = 2
    data[8:12] = struct.pack("<I", segment._header_crc(bytes(data[:98])))
    with pytest.raises(NewerFormat, match=r"wal/0000000000000002\.seg: WAL segment format 2 is newer than 1, .*; upgrade this node"):
        recover(ME, [SegmentFile(2, segment_name(2), bytes(data))], None, OPTIONS)


def test_the_check_sees() -> None:
    assert bytes_of(["# a note", "0000  01 00  version = 1", "0002  zeros  up to 0004"]) == b"\1\0\0\0"
    for wrong in ("0001  01 00  version", "0000  01 00  version = 2", "0000  0100  version"):
        with pytest.raises(AssertionError):
            bytes_of([wrong])
    with pytest.raises(Damaged):
        formats.check(formats.WAL_SEGMENT, b"ABWS", 0, "here")
