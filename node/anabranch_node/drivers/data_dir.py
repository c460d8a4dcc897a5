"""The data directory itself: whose it is, that only one process uses it, and how often it was started.

Before us: main.py, before anything else is opened. After us: WalDisk and SnapshotDisk below the same root. `identity.json` is written once and names
cluster, node and incarnation; `boot` rises durably at each start, so that a restored copy of a volume gives itself away; `LOCK` is flocked.
Not here: drawing the incarnation, and whether this identity is welcome (the meta group)."""

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import TypeVar

import msgspec

from anabranch_node.drivers.fs import Fs
from anabranch_proto.checksum import crc32c
from anabranch_proto.formats import Damaged, NewerFormat
from anabranch_proto.ids import NodeIdentity

FORMAT = 1

T = TypeVar("T")


class DataDirInUse(Exception):
    """Another process has the lock. Two writers would destroy the log, so there is no way around this."""


class _Identity(msgspec.Struct, frozen=True):
    format: int
    cluster_id: str
    node_id: int
    incarnation: str  # hexadecimal: it has 128 bits, which JSON readers do not promise to keep
    crc32c: int


class _Boot(msgspec.Struct, frozen=True):
    format: int
    boot: int
    crc32c: int


class _AnyFormat(msgspec.Struct, frozen=True):
    format: int


class DataDirLock:
    """Held as long as the process lives or until release(). The kernel drops it with the process, so a crash leaves nothing to clean up."""

    def __init__(self, root: str) -> None:
        path = f"{root}/LOCK"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise DataDirInUse(f"{path}: in use by process {holder}; stop it first, or give this node its own data directory") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def prepare(fs: Fs, root: str) -> None:
    """Make the directory if it is not there, durably. Its parent must exist or be ours to make."""
    if fs.makedirs(root):
        fs.fsync_dir(os.path.dirname(os.path.abspath(root)))


def read_identity(fs: Fs, root: str) -> NodeIdentity | None:
    """None: a fresh directory. Raises Damaged or NewerFormat naming the file: a guess here could make one node of two."""
    path = f"{root}/identity.json"
    data = _read(fs, path)
    if data is None:
        return None
    _check_format(data, path)
    identity = _decode(data, _Identity, path)
    try:
        incarnation = int(identity.incarnation, 16)
    except ValueError:
        raise Damaged(path, f"incarnation {identity.incarnation!r} is not hexadecimal") from None
    found = NodeIdentity(identity.cluster_id, identity.node_id, incarnation)
    if identity.crc32c != _identity_crc(found):
        raise Damaged(path, "checksum is wrong; it is written once and never edited")
    return found


def write_identity(fs: Fs, root: str, identity: NodeIdentity) -> None:
    """Once in the life of a directory. FileExistsError if it has one: an incarnation never changes, it is replaced with its disk."""
    if "identity.json" in fs.listdir(root):
        raise FileExistsError(f"{root}/identity.json: this directory already has an identity")
    fields = _Identity(FORMAT, identity.cluster_id, identity.node_id, f"{identity.incarnation:032x}", _identity_crc(identity))
    _replace(fs, root, "identity.json", msgspec.json.format(msgspec.json.encode(fields)) + b"\n")


def draft_incarnation(fs: Fs, root: str, draw: Callable[[], int]) -> int:
    """The incarnation that a directory without an identity will have. Kept from the first start on, so that a crash between joining and writing
    identity.json does not make another node of it."""
    data = _read(fs, f"{root}/incarnation")
    if data is not None:
        try:
            return int(data, 16)
        except ValueError:
            raise Damaged(f"{root}/incarnation", "is not a hexadecimal number; delete it if this node never joined a cluster") from None
    incarnation = draw()
    _replace(fs, root, "incarnation", f"{incarnation:x}\n".encode())
    return incarnation


def write_cache(fs: Fs, root: str, name: str, data: bytes) -> None:
    """Something worth remembering that nothing depends on. Checked when it is read."""
    _replace(fs, root, name, crc32c(data).to_bytes(4, "little") + data)


def read_cache(fs: Fs, root: str, name: str) -> bytes | None:
    data = _read(fs, f"{root}/{name}")
    return data[4:] if data is not None and len(data) > 4 and crc32c(data[4:]) == int.from_bytes(data[:4], "little") else None


def read_boot(fs: Fs, root: str) -> int:
    """How often this directory was started; 0 for never."""
    path = f"{root}/boot"
    data = _read(fs, path)
    if data is None:
        return 0
    _check_format(data, path)
    boot = _decode(data, _Boot, path)
    if boot.crc32c != _boot_crc(boot.boot):
        raise Damaged(path, "checksum is wrong")
    return boot.boot


def next_boot(fs: Fs, root: str) -> int:
    """The number of this start. It is durable when this returns, so no two starts of one disk share a number.
    The directory fsync also settles the name of an identity.json whose writer died right after its rename."""
    boot = read_boot(fs, root) + 1
    _replace(fs, root, "boot", msgspec.json.encode(_Boot(FORMAT, boot, _boot_crc(boot))) + b"\n")
    return boot


def _identity_crc(identity: NodeIdentity) -> int:
    return crc32c(msgspec.json.encode((FORMAT, identity.cluster_id, identity.node_id, f"{identity.incarnation:032x}")))


def _boot_crc(boot: int) -> int:
    return crc32c(msgspec.json.encode((FORMAT, boot)))


def _read(fs: Fs, path: str) -> bytes | None:
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read_all()
    finally:
        file.close()


def _check_format(data: bytes, path: str) -> None:
    found = _decode(data, _AnyFormat, path).format
    if found > FORMAT:
        raise NewerFormat(path, f"format {found} is newer than {FORMAT}, the newest this version reads; upgrade this node")


def _decode(data: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Damaged(path, f"does not decode: {error}") from error


def _replace(fs: Fs, root: str, name: str, data: bytes) -> None:
    """The old content or the new, whatever happens."""
    temporary = f"{root}/{name}.tmp"
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(temporary)
    file = fs.create(temporary)
    try:
        file.pwrite(0, data)
        file.fsync()
    finally:
        file.close()
    fs.rename(temporary, f"{root}/{name}")
    fs.fsync_dir(root)
