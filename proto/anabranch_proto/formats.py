"""Magic and version of every file and frame. Readers ask here before they trust a byte; a newer version is an error, never a guess.

Writers: wal/segment.py, wal/snapshot_file.py, engine/envelope.py. Not here: the layouts themselves, which live beside their codecs."""

from typing import NamedTuple


class FormatError(Exception):
    """The bytes are not what their place says they are. `where` names the file or the peer."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class ForeignFormat(FormatError):
    """Another kind of file, another cluster, another node: nothing of ours, so nothing to repair."""


class NewerFormat(FormatError):
    """Written by a newer Anabranch. Refused, so that a downgrade cannot misread what an upgrade wrote."""


class Damaged(FormatError):
    """Ours, but a checksum or a length is wrong."""


class Format(NamedTuple):
    name: str
    magic: bytes
    version: int


WAL_SEGMENT = Format("WAL segment", b"ABWS", 1)
WAL_BATCH = Format("WAL batch", b"ABWB", 1)
WAL_SYNC_MARK = Format("WAL sync mark", b"ABWM", 1)
SNAPSHOT = Format("snapshot", b"ABSN", 1)
PEER_FRAME = Format("peer frame", b"ABPF", 1)


def check(expected: Format, magic: bytes, version: int, where: str) -> None:
    """Raise unless these leading bytes belong to `expected` in a version that this program reads."""
    if magic != expected.magic:
        raise ForeignFormat(where, f"not a {expected.name}: starts with {magic!r}, expected {expected.magic!r}")
    if version > expected.version:
        raise NewerFormat(
            where, f"{expected.name} format {version} is newer than {expected.version}, the newest this version reads; upgrade this node"
        )
    if version < 1:
        raise Damaged(where, f"{expected.name} format {version} never existed")
