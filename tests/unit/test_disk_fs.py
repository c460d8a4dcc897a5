"""Guards: the real file system does what the simulated one promises, finishes short writes, and names the file in every error."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.drivers.fs import File, Fs, OsFs
from tests.sim.sim_disk import SimFs


def test_short_writes_and_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data[:3]), offset))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 4), offset))
    file = OsFs().create(str(tmp_path / "x"))
    file.pwrite(2, b"0123456789")
    assert file.read_all() == b"\0\x000123456789"
    assert file.pread(9, 100) == b"789"
    file.close()


def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    fs, path = OsFs(), str(tmp_path / "x")
    file = fs.create(path)
    for name in ("pwrite", "pread", "fdatasync", "fsync"):
        monkeypatch.setattr(os, name, broken)
    calls: list[Callable[[], object]] = [
        lambda: file.pwrite(0, b"x"),
        lambda: file.pread(0, 1),
        file.fdatasync,
        file.fsync,
        lambda: file.zero_fill(10),
    ]
    for call in calls:
        with pytest.raises(OSError, match=path):
            call()
    with pytest.raises(OSError, match=str(tmp_path)):
        fs.fsync_dir(str(tmp_path))
    file.close()
    file.close()


def test_zero_fill_allocates_and_descriptors_are_not_inherited(tmp_path: Path) -> None:
    file = OsFs().create(str(tmp_path / "x"))
    file.zero_fill((3 << 20) + 100)
    file.fsync()
    file.forget_cached()
    status = (tmp_path / "x").stat()
    assert status.st_size == (3 << 20) + 100 and status.st_blocks * 512 >= status.st_size
    assert file.read_all() == bytes((3 << 20) + 100)
    assert not os.get_inheritable(file._fd)
    assert OsFs().free_bytes(str(tmp_path)) > 0
    file.close()


@given(seed=st.integers(0, 1 << 32))
def test_simulated_and_real_file_system_agree(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    real_root = str(tmp_path_factory.mktemp("fs"))
    sides: list[tuple[Fs, str, dict[str, File]]] = [(OsFs(), real_root, {}), (SimFs("data"), "data", {})]
    results: list[list[object]] = [[], []]
    for (fs, root, files), result in zip(sides, results, strict=True):
        rng = random.Random(seed)
        for _ in range(40):
            result.append(_step(fs, root, files, rng))
        for file in files.values():
            file.close()
    assert results[0] == results[1]


def _step(fs: Fs, root: str, files: dict[str, File], rng: random.Random) -> object:
    """One random call; what it answered, or which error."""
    name, other = rng.choice("abc"), rng.choice("abc")
    path, folder = f"{root}/{name}", f"{root}/d/{name}"
    verb, offset, length, data = rng.randrange(12), rng.randrange(200), rng.randrange(1, 300), rng.randbytes(rng.randrange(1, 300))
    try:
        if verb == 0:
            file = fs.create(path)
            if name in files:
                files[name].close()
            files[name] = file
            return "created"
        if verb == 1:
            fs.open(path).close()
            return "opened"
        if verb == 2:
            fs.rename(path, f"{root}/{other}")
            return "renamed"
        if verb == 3:
            fs.unlink(path)
            return "unlinked"
        if verb == 4:
            return fs.listdir(root)
        if verb == 5:
            return fs.makedirs(folder)
        if verb == 6:
            fs.fsync_dir(root)
            return "synced"
        if name in files:
            file = files[name]
            if verb == 7:
                file.pwrite(offset, data)
            elif verb == 8:
                file.fdatasync()
            elif verb == 9:
                file.zero_fill(length)
            return (file.size(), file.pread(offset, length), file.read_all())
    except OSError as error:
        return type(error)
    return None
