"""Guards: one process per directory, one identity for its life, and no boot number twice, wherever a crash hits."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch_node.drivers import data_dir
from anabranch_node.drivers.fs import OsFs
from anabranch_proto.formats import Damaged, NewerFormat
from anabranch_proto.ids import NodeIdentity
from tests.sim.sim_disk import SimCrash, SimFs

IDENTITY = NodeIdentity("cluster-a", 2, 0xFEED << 100)


def test_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    root = str(tmp_path)
    lock = data_dir.DataDirLock(root)
    with pytest.raises(data_dir.DataDirInUse, match=rf"LOCK: in use by process {os.getpid()};"):
        data_dir.DataDirLock(root)
    lock.release()
    lock.release()
    data_dir.DataDirLock(root).release()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = f"import os; from anabranch_node.drivers.data_dir import DataDirLock; l = DataDirLock({str(tmp_path)!r}); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False, timeout=60)
    assert (tmp_path / "LOCK").read_text().strip().isdecimal()
    data_dir.DataDirLock(str(tmp_path)).release()


def test_identity_is_written_once(tmp_path: Path) -> None:
    root, fs = str(tmp_path / "data"), OsFs()
    data_dir.prepare(fs, root)
    assert data_dir.read_identity(fs, root) is None
    data_dir.write_identity(fs, root, IDENTITY)
    assert data_dir.read_identity(fs, root) == IDENTITY
    with pytest.raises(FileExistsError, match="already has an identity"):
        data_dir.write_identity(fs, root, IDENTITY._replace(incarnation=1))
    assert data_dir.read_identity(fs, root) == IDENTITY
    assert os.listdir(root) == ["identity.json"]


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        (('"format": 1', '"format": 2'), NewerFormat, "format 2 is newer"),
        (('"node_id": 2', '"node_id": 3'), Damaged, "checksum"),
        (("feed", "beef"), Damaged, "checksum"),
        (("feed", "zeed"), Damaged, "hexadecimal"),
        (("{", "["), Damaged, "does not decode"),
        (('"node_id"', '"node"'), Damaged, "node_id"),
    ],
)
def test_identity_that_is_not_ours_to_read_is_refused_by_name(tmp_path: Path, change: tuple[str, str], error: type[Exception], problem: str) -> None:
    root, fs = str(tmp_path), OsFs()
    data_dir.write_identity(fs, root, IDENTITY)
    path = tmp_path / "identity.json"
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(error, match=rf"identity\.json: .*{problem}"):
        data_dir.read_identity(fs, root)


def test_boot_rises_at_each_start(tmp_path: Path) -> None:
    root, fs = str(tmp_path), OsFs()
    assert data_dir.read_boot(fs, root) == 0
    assert [data_dir.next_boot(fs, root) for _ in range(3)] == [1, 2, 3]
    (tmp_path / "boot").write_bytes(b"")
    with pytest.raises(Damaged, match="boot: does not decode"):
        data_dir.next_boot(fs, root)
    (tmp_path / "boot").write_text('{"format": 9}')
    with pytest.raises(NewerFormat, match="boot: format 9"):
        data_dir.next_boot(fs, root)


def test_a_boot_number_that_was_returned_is_never_returned_again() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        fs, last = SimFs(), 0
        for _ in range(6):
            fs.crash_after_ops(rng.randint(1, 9), rng.random())
            try:
                boot = data_dir.next_boot(fs, "data")
                assert boot > last, seed
                last = boot
                data_dir.next_boot(fs, "data")
                last += 1
            except SimCrash:
                pass
            if rng.random() < 0.5:
                fs.kill()
            else:
                fs.power_loss(rng)


def test_identity_is_whole_or_absent_after_a_crash_anywhere() -> None:
    outcomes = set()
    for count in range(1, 8):
        for part in (0.0, 0.5, 1.0):
            for seed in range(20):
                fs = SimFs()
                fs.crash_after_ops(count, part)
                done = False
                try:
                    data_dir.write_identity(fs, "data", IDENTITY)
                    done = True
                except SimCrash:
                    pass
                fs.power_loss(random.Random(seed))
                found = data_dir.read_identity(fs, "data")
                assert found in (None, IDENTITY)
                assert found or not done
                outcomes.add((done, found))
                if found is None:
                    data_dir.write_identity(fs, "data", IDENTITY)
    assert len(outcomes) == 3
