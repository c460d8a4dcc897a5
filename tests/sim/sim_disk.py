"""A file system in memory with a page cache, for the simulator: what drivers/wal_disk.py does to it can be cut off anywhere.

Per file: the bytes on the platter, the bytes that reads see, and the ordered writes between the two. Per folder: the names on the platter, the
names that lookups see, and the ordered changes between the two. kill() ends the process: the cache survives. power_loss(rng) does not.
Chance comes in as `rng`, always; equal calls with equal generators give equal bytes. Not here: time (a stall is the simulator's to schedule)."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import NamedTuple

SECTOR = 512
_NEVER = 1 << 62


class SimCrash(BaseException):
    """The process is gone, in the middle of this call. Not an Exception: no handler of the code under test may see it."""


class Rot(NamedTuple):
    """What rot() did, for the trace and for the budget of damage."""

    path: str
    offset: int
    length: int
    how: str

    def __str__(self) -> str:
        return f"{self.path}: {self.how} in bytes {self.offset}..{self.offset + self.length - 1}"


class SimFile:
    """An inode and its handle in one. Handles of an earlier life (generation) are dead."""

    __slots__ = ("cached", "durable", "fs", "generation", "links", "number", "path", "pending", "unreadable")

    def __init__(self, fs: SimFs, number: int, path: str, durable: bytearray, cached: bytearray) -> None:
        self.fs = fs
        self.number = number
        self.path = path  # the name it was last opened or renamed by, for messages
        self.generation = fs.generation
        self.links = 1
        self.durable = durable
        self.cached = cached
        self.pending: list[tuple[int, bytes]] = []
        self.unreadable = (0, 0)  # reads that touch this range fail for ever

    def pwrite(self, offset: int, data: bytes) -> None:
        fs = self.fs
        fs.ops = ops = fs.ops + 1
        if ops >= fs.fuse or self.generation != fs.generation:
            self._cut_short(offset, data)
        end = offset + len(data)
        cached = self.cached
        if end > len(cached):
            fs.grow(self, end)
        cached[offset:end] = data
        self.pending.append((offset, data))

    def pread(self, offset: int, length: int) -> bytes:
        fs = self.fs
        fs.check(self)
        if fs.read_errors or self.unreadable[1]:
            fs.fail_read(self, offset, offset + length)
        return bytes(self.cached[offset : offset + length])

    def read_all(self) -> bytes:
        return self.pread(0, len(self.cached))

    def size(self) -> int:
        self.fs.check(self)
        return len(self.cached)

    def zero_fill(self, size: int) -> None:
        fs = self.fs
        room = len(self.cached) + max(0, fs.capacity_bytes - fs.used_bytes)
        if size > room:
            self.pwrite(0, bytes(room // SECTOR * SECTOR))
            raise fs.inject(errno.ENOSPC, self.path)
        self.pwrite(0, bytes(size))

    def fdatasync(self) -> None:
        fs = self.fs
        fs.ops = ops = fs.ops + 1
        if ops >= fs.fuse or self.generation != fs.generation:
            self._cut_short_sync()
        fs.syncs += 1
        if fs.fsync_errors:
            fs.fail_fsync(self)
        durable = self.durable
        pending = self.pending
        if len(durable) != len(self.cached):
            durable.extend(bytes(len(self.cached) - len(durable)))
        for offset, data in pending:
            durable[offset : offset + len(data)] = data
        pending.clear()

    fsync = fdatasync

    def forget_cached(self) -> None:
        self.fs.check(self)
        self.cached[:] = self.durable
        for offset, data in self.pending:  # dirty pages are never dropped
            self.cached[len(self.cached) :] = bytes(max(0, offset + len(data) - len(self.cached)))
            self.cached[offset : offset + len(data)] = data

    def close(self) -> None:
        pass

    def _cut_short(self, offset: int, data: bytes) -> None:
        done = self.fs.blow(self)
        data = data[: int(len(data) * done)]
        if data:
            self.cached.extend(bytes(max(0, offset + len(data) - len(self.cached))))
            self.cached[offset : offset + len(data)] = data
            self.pending.append((offset, data))
        raise SimCrash(f"during a write to {self.path}")

    def _cut_short_sync(self) -> None:
        done = self.fs.blow(self)
        count = int(len(self.pending) * done)
        for offset, data in self.pending[:count]:
            self.durable.extend(bytes(max(0, offset + len(data) - len(self.durable))))
            self.durable[offset : offset + len(data)] = data
        del self.pending[:count]
        raise SimCrash(f"during an fsync of {self.path}")


class _Create(NamedTuple):
    name: str
    node: SimFile | SimDir


class _Unlink(NamedTuple):
    name: str


class _Rename(NamedTuple):
    old: str
    new: str
    node: SimFile | SimDir


_Change = _Create | _Unlink | _Rename


class SimDir:
    """`names` is what lookups see, `durable` what a power loss leaves when none of `pending` made it."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, SimFile | SimDir] = {}
        self.durable: dict[str, SimFile | SimDir] = {}
        self.pending: list[_Change] = []


class SimFs:
    """One node's disk. `root` exists and is durable from the start.

    Faults by attribute: `capacity_bytes`; `fsync_errors`, how many of the next fsyncs fail with EIO: each also loses the bytes it should have
    written, though reads still show them, and the one after it succeeds (that is the trap); `fsync_error_filter`, which paths they hit.
    `read_errors`, how many of the next reads fail with EIO; make_unreadable(), a range that always does.
    `injected` and `injected_reads` have the paths of the errors that this life of the process was given, and nobody else's doing."""

    def __init__(self, root: str = "data", capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.fsync_errors = 0
        self.fsync_error_filter: Callable[[str], bool] = lambda path: True
        self.read_errors = 0
        self.injected: list[str] = []
        self.injected_reads: list[str] = []
        self.ops = 0
        """Mutating calls so far: the clock of crash_after_ops."""
        self.syncs = 0
        self.fuse = _NEVER
        self.generation = 0
        self._fuse_part = 0.0
        self._dead = False
        self._used_bytes = 0
        self._file_count = 0
        self._top = SimDir()
        self.makedirs(root)
        self.ops = 0
        self._settle(self._top)

    # --- the verbs of drivers/fs.py

    def create(self, path: str) -> SimFile:
        folder, name = self._folder_of(path)
        if name in folder.names:
            raise self.error(errno.EEXIST, path)
        if self._mutating():
            self._file_count += 1
            file = SimFile(self, self._file_count, path, bytearray(), bytearray())
            folder.names[name] = file
            folder.pending.append(_Create(name, file))
        self._survived(path)
        return file

    def open(self, path: str) -> SimFile:
        self._alive()
        folder, name = self._folder_of(path)
        node = folder.names.get(name)
        if not isinstance(node, SimFile):
            raise self.error(errno.ENOENT if node is None else errno.EISDIR, path)
        node.path = path
        return node

    def rename(self, old: str, new: str) -> None:
        folder, old_name = self._folder_of(old)
        target, new_name = self._folder_of(new)
        assert folder is target, "renames across folders are not simulated"
        node = folder.names.get(old_name)
        if node is None:
            raise self.error(errno.ENOENT, old)
        if self._mutating():
            replaced = folder.names.get(new_name)
            if isinstance(replaced, SimFile) and replaced is not node:
                self._unlinked(replaced)
            del folder.names[old_name]
            folder.names[new_name] = node
            folder.pending.append(_Rename(old_name, new_name, node))
            if isinstance(node, SimFile):
                node.path = new
        self._survived(new)

    def unlink(self, path: str) -> None:
        folder, name = self._folder_of(path)
        node = folder.names.get(name)
        if not isinstance(node, SimFile):
            raise self.error(errno.ENOENT if node is None else errno.EISDIR, path)
        if self._mutating():
            del folder.names[name]
            folder.pending.append(_Unlink(name))
            self._unlinked(node)
        self._survived(path)

    def fsync_dir(self, path: str) -> None:
        folder = self._dir(path)
        done = self._mutating()
        if done and not self._dead and self.fsync_errors and self.fsync_error_filter(path):
            # The changes stay pending: names go through the journal, which does not forget them as the cache forgets bytes.
            self.fsync_errors -= 1
            raise self.inject(errno.EIO, path)
        if done:
            folder.durable = dict(folder.names)
            folder.pending.clear()
        self._survived(path)

    def listdir(self, path: str) -> list[str]:
        self._alive()
        return sorted(self._dir(path).names)

    def makedirs(self, path: str) -> bool:
        folder, made = self._top, False
        for name in path.split("/"):
            node = folder.names.get(name)
            if node is None:
                node = SimDir()
                if self._mutating():
                    folder.names[name] = node
                    folder.pending.append(_Create(name, node))
                self._survived(path)
                made = True
            if not isinstance(node, SimDir):
                raise self.error(errno.ENOTDIR, path)
            folder = node
        return made

    def free_bytes(self, path: str) -> int:
        self._alive()
        return max(0, self.capacity_bytes - self._used_bytes)

    # --- faults

    def crash_after_ops(self, count: int, part: float = 0.0) -> None:
        """The count-th mutating call from now (1: the next) raises SimCrash: before it has any effect (part 0), after all of it (1), or in between.
        Everything after it raises too, until kill() or power_loss() and a new life."""
        assert count >= 1, count
        self.fuse = self.ops + count
        self._fuse_part = part

    def kill(self) -> None:
        """The process dies. Everything it wrote is still in the page cache, and reaches the disk if the power stays on."""
        self._new_life()
        self._rebuild(self._top, {})
        self._used_bytes = sum(len(file.cached) for _, file in self.files())

    def power_loss(self, rng: random.Random) -> None:
        """The machine dies. Of every file some unsynced sectors survive, of every folder some changes; the cache is what the disk has now."""
        self._new_life()
        files: dict[int, SimFile] = {}
        self._lose_names(self._top, rng)
        self._rebuild(self._top, files)
        self._used_bytes = 0
        for number in sorted(files):
            file = files[number]
            _lose_writes(file, rng)
            self._used_bytes += len(file.cached)
        self._settle(self._top)

    def make_unreadable(self, rng: random.Random, path_filter: Callable[[str], bool]) -> Rot | None:
        """One sector, of those that hold written bytes, can no longer be read: until its file is deleted. None if no file matches."""
        candidates = [(path, file) for path, file in self.files() if path_filter(path) and any(file.durable)]
        if not candidates:
            return None
        path, file = rng.choice(candidates)
        start = rng.randrange(len(file.durable.rstrip(b"\0"))) // SECTOR * SECTOR
        file.unreadable = (start, start + SECTOR)
        return Rot(path, start, SECTOR, "sector unreadable")

    def rot(self, rng: random.Random, path_filter: Callable[[str], bool] | None = None, end_of: Callable[[str], int] | None = None) -> Rot | None:
        """Flip 1..8 bits within one sector, or zero a sector, of durable bytes that were really written (not the zero-filled rest of a file).
        None if no file matches. `end_of` bounds the bytes of a file that may rot. Reads see it at once, except where the cache holds a newer
        write."""
        candidates = [
            (path, file) for path, file in self.files() if (path_filter is None or path_filter(path)) and file.durable != bytes(len(file.durable))
        ]
        if not candidates:
            return None
        path, file = rng.choice(candidates)
        written = len(file.durable.rstrip(b"\0"))
        if end_of is not None:
            written = min(written, end_of(path))
        if not written:
            return None
        start = rng.randrange(written) // SECTOR * SECTOR
        length = min(SECTOR, written - start)
        old = bytes(file.durable[start : start + length])
        new = bytearray(old)
        if any(old) and rng.random() < 0.2:
            new[:] = bytes(length)
            how = "sector zeroed"
        else:
            bits = rng.sample(range(length * 8), min(rng.randint(1, 8), length * 8))
            for bit in bits:
                new[bit // 8] ^= 1 << (bit % 8)
            how = f"{len(bits)} bits flipped"
        dirty = {byte for offset, data in file.pending for byte in range(max(offset, start), min(offset + len(data), start + length))}
        changed = [index for index in range(length) if old[index] != new[index]]
        for index in changed:
            file.durable[start + index] = new[index]
            if start + index not in dirty:
                file.cached[start + index] = new[index]
        return Rot(path, start + changed[0], changed[-1] - changed[0] + 1, how)

    # --- looking inside

    def files(self) -> list[tuple[str, SimFile]]:
        """Every file that has a name now, by path."""
        found: list[tuple[str, SimFile]] = []
        folders: list[tuple[str, SimDir]] = [("", self._top)]
        while folders:
            prefix, folder = folders.pop()
            for name, node in folder.names.items():
                if isinstance(node, SimFile):
                    found.append((prefix + name, node))
                else:
                    folders.append((f"{prefix}{name}/", node))
        return sorted(found, key=lambda item: item[0])

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def has_unsynced(self) -> bool:
        """Whether a power loss now could lose anything."""
        folders = [self._top]
        while folders:
            folder = folders.pop()
            if folder.pending:
                return True
            for node in folder.names.values():
                if isinstance(node, SimDir):
                    folders.append(node)
                elif node.pending:
                    return True
        return False

    # --- inside

    def check(self, file: SimFile) -> None:
        if file.generation != self.generation or self._dead:
            raise SimCrash(f"{file.path} belongs to a process that is gone")

    def error(self, code: int, path: str) -> OSError:
        return OSError(code, os.strerror(code), path)

    def inject(self, code: int, path: str) -> OSError:
        self.injected.append(path)
        return self.error(code, path)

    def grow(self, file: SimFile, size: int) -> None:
        more = size - len(file.cached)
        if file.links:
            if more > self.capacity_bytes - self._used_bytes:
                raise self.inject(errno.ENOSPC, file.path)
            self._used_bytes += more
        file.cached.extend(bytes(more))

    def fail_fsync(self, file: SimFile) -> None:
        if self.fsync_error_filter(file.path):
            self.fsync_errors -= 1
            file.pending.clear()
            raise self.inject(errno.EIO, file.path)

    def fail_read(self, file: SimFile, start: int, end: int) -> None:
        low, high = file.unreadable
        if start >= high or low >= end:
            if not self.read_errors:
                return
            self.read_errors -= 1
        self.injected_reads.append(file.path)
        raise self.error(errno.EIO, file.path)

    def blow(self, file: SimFile) -> float:
        """The fuse has burnt down in a call on this file: how much of the call still happens."""
        self.check(file)
        self._dead = True
        return self._fuse_part

    def _alive(self) -> None:
        if self._dead:
            raise SimCrash("this process is gone")

    def _mutating(self) -> bool:
        """Count a call; False if it is the one that a crash prevents altogether. _survived() ends it."""
        self._alive()
        self.ops += 1
        if self.ops >= self.fuse:
            self._dead = True
            return self._fuse_part >= 0.5
        return True

    def _survived(self, path: str) -> None:
        if self._dead:
            raise SimCrash(f"at {path}")

    def _new_life(self) -> None:
        self.generation += 1
        self.fuse = _NEVER
        self._dead = False
        self.fsync_errors = 0
        self.injected.clear()
        self.injected_reads.clear()

    def _dir(self, path: str) -> SimDir:
        folder = self._top
        for name in path.split("/") if path else ():
            node = folder.names.get(name)
            if not isinstance(node, SimDir):
                raise self.error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            folder = node
        return folder

    def _folder_of(self, path: str) -> tuple[SimDir, str]:
        folder, _, name = path.rpartition("/")
        return self._dir(folder), name

    def _unlinked(self, file: SimFile) -> None:
        file.links = 0
        self._used_bytes -= len(file.cached)

    def _lose_names(self, folder: SimDir, rng: random.Random) -> None:
        """Each change since the last fsync of the folder survives or not. A rename is one change: the old name or the new one, never neither."""
        if folder.pending:
            odds = rng.choice((0.0, 0.5, 0.5, 1.0))
            for change in folder.pending:
                if rng.random() >= odds:
                    continue
                if isinstance(change, _Create):
                    folder.durable[change.name] = change.node
                elif isinstance(change, _Unlink):
                    folder.durable.pop(change.name, None)
                else:
                    if folder.durable.get(change.old) is change.node:
                        del folder.durable[change.old]
                    folder.durable[change.new] = change.node
        folder.pending.clear()
        folder.names = dict(folder.durable)
        for name in sorted(folder.names):
            node = folder.names[name]
            if isinstance(node, SimDir):
                self._lose_names(node, rng)

    def _rebuild(self, folder: SimDir, files: dict[int, SimFile]) -> None:
        """New handles for the new life, the same for every name of one file; the old ones are dead."""
        for names in (folder.names, folder.durable):
            for name, node in names.items():
                if isinstance(node, SimFile):
                    names[name] = self._reborn(node, files)
        folder.pending = [
            change._replace(node=self._reborn(change.node, files)) if not isinstance(change, _Unlink) and isinstance(change.node, SimFile) else change
            for change in folder.pending
        ]
        for node in folder.names.values():
            if isinstance(node, SimFile):
                node.links = 1
        seen: list[SimDir] = []
        changes = [change.node for change in folder.pending if not isinstance(change, _Unlink)]
        for inner in (*folder.names.values(), *folder.durable.values(), *changes):
            if isinstance(inner, SimDir) and not any(inner is other for other in seen):
                seen.append(inner)
                self._rebuild(inner, files)

    def _reborn(self, file: SimFile, files: dict[int, SimFile]) -> SimFile:
        if file.generation == self.generation:
            return file
        if file.number not in files:
            again = SimFile(self, file.number, file.path, file.durable, file.cached)
            again.pending = list(file.pending)
            again.links = 0
            again.unreadable = file.unreadable
            files[file.number] = again
        return files[file.number]

    def _settle(self, folder: SimDir) -> None:
        """What is there is durable."""
        folder.durable = dict(folder.names)
        folder.pending.clear()
        for node in folder.names.values():
            if isinstance(node, SimDir):
                self._settle(node)


def _lose_writes(file: SimFile, rng: random.Random) -> None:
    """The disk wrote back some sectors, in any order, before the power went; one of them it was just writing.

    Within a sector writes keep their order: what is on the platter is the sector as it was at some moment."""
    pending, durable = file.pending, file.durable
    if pending:
        size = len(file.cached)
        if size > len(durable):
            size = rng.choice((size, size, len(durable), rng.randint(len(durable), size)))
        sectors: dict[int, list[tuple[int, bytes]]] = {}
        for offset, data in pending:
            done = 0
            while done < len(data):
                sector = (offset + done) // SECTOR
                step = min(len(data) - done, (sector + 1) * SECTOR - offset - done)
                sectors.setdefault(sector, []).append((offset + done, data[done : done + step]))
                done += step
        durable.extend(bytes(max(0, size - len(durable))))
        odds = rng.choice((0.0, 0.5, 0.9, 1.0))
        in_order = rng.random() < 0.5
        order = list(sectors)
        if not in_order:
            rng.shuffle(order)
        reached = round(len(order) * odds) if in_order else len(order)
        for position, sector in enumerate(order):
            pieces = sectors[sector]
            survives = position < reached if in_order else rng.random() < odds
            torn = position == reached if in_order else position == len(order) - 1
            if survives:
                whole = len(pieces) if rng.random() < 0.8 else rng.randint(0, len(pieces))
                for offset, data in pieces[:whole]:
                    _overwrite(durable, offset, data)
            elif torn and odds > 0.0:
                _tear(durable, sector, pieces, rng)
        del durable[size:]
        pending.clear()
    file.cached = bytearray(durable)


def _tear(durable: bytearray, sector: int, pieces: list[tuple[int, bytes]], rng: random.Random) -> None:
    """A sector was half-written: some bytes are new, the rest of it old, zero or garbage."""
    whole = rng.randrange(len(pieces))
    for offset, data in pieces[:whole]:
        _overwrite(durable, offset, data)
    offset, data = pieces[whole]
    cut = rng.randint(0, len(data))
    _overwrite(durable, offset, data[:cut])
    rest = (sector + 1) * SECTOR - offset - cut
    filling = rng.choice(("old", "zero", "garbage"))
    if filling == "zero":
        _overwrite(durable, offset + cut, bytes(rest))
    elif filling == "garbage":
        _overwrite(durable, offset + cut, rng.randbytes(rest))


def _overwrite(durable: bytearray, offset: int, data: bytes) -> None:
    """Never past the end: the file's size is metadata and was settled before."""
    data = data[: max(0, len(durable) - offset)]
    durable[offset : offset + len(data)] = data
