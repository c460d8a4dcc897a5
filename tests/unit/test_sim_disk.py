"""Guards: the simulated disk keeps what a real one promises to keep, and loses all that a real one may lose. A too kind disk hides bugs."""

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.drivers.fs import File, Fs
from tests.sim.sim_disk import SECTOR, SimCrash, SimFile, SimFs


def file_with(fs: SimFs, path: str, durable: bytes) -> SimFile:
    file = fs.create(path)
    file.pwrite(0, durable)
    file.fsync()
    fs.fsync_dir(path.rpartition("/")[0])
    return file


def after_power_loss(seed: int, prepare: Callable[[SimFs], None]) -> SimFs:
    fs = SimFs()
    prepare(fs)
    fs.power_loss(random.Random(seed))
    return fs


def content(fs: SimFs, path: str) -> bytes | None:
    return {name: bytes(file.cached) for name, file in fs.files()}.get(path)


def test_is_the_file_system_that_production_uses() -> None:
    fs: Fs = SimFs()
    file: File = fs.create("data/x")
    file.pwrite(3, b"abc")
    assert (file.read_all(), file.pread(4, 9), file.size()) == (b"\0\0\0abc", b"bc", 6)
    file.zero_fill(10)
    assert file.read_all() == bytes(10)
    with pytest.raises(FileExistsError):
        fs.create("data/x")
    with pytest.raises(FileNotFoundError):
        fs.open("data/y")
    with pytest.raises(FileNotFoundError):
        fs.unlink("data/y")
    with pytest.raises(FileNotFoundError):
        fs.listdir("data/nowhere")
    assert fs.makedirs("data/a/b")
    assert not fs.makedirs("data/a/b")
    fs.rename("data/x", "data/z")
    assert fs.listdir("data") == ["a", "z"]
    fs.unlink("data/z")
    assert fs.listdir("data") == ["a"]


def test_kill_keeps_the_cache_and_ends_the_handles() -> None:
    fs = SimFs()
    file = fs.create("data/x")
    file.pwrite(0, b"written, not synced")
    fs.kill()
    assert fs.open("data/x").read_all() == b"written, not synced"
    with pytest.raises(SimCrash):
        file.pwrite(0, b"a dead process writes")
    with pytest.raises(SimCrash):
        file.fdatasync()

    def prepare(fs: SimFs) -> None:
        fs.create("data/x").pwrite(0, b"abc")
        fs.kill()

    outcomes = {content(after_power_loss(seed, prepare), "data/x") for seed in range(200)}
    assert {None, b"abc"} <= outcomes, "the kill made nothing durable"


@given(st.integers(0, 1 << 32), st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 1500)), max_size=6))
def test_synced_bytes_survive_and_unsynced_ones_stay_in_their_sectors(seed: int, writes: list[tuple[int, int]]) -> None:
    rng = random.Random(seed)
    fs = SimFs()
    before = rng.randbytes(4096)
    file = file_with(fs, "data/x", before)
    for offset, length in writes:
        file.pwrite(offset, rng.randbytes(length))
    touched = {sector for offset, length in writes for sector in range(offset // SECTOR, (offset + length - 1) // SECTOR + 1)}
    fs.power_loss(rng)
    now = fs.open("data/x").read_all()
    assert len(now) >= 4096
    for sector in range(4096 // SECTOR):
        if sector not in touched:
            assert now[sector * SECTOR : (sector + 1) * SECTOR] == before[sector * SECTOR : (sector + 1) * SECTOR]
    again = bytes(now)
    fs.power_loss(rng)
    assert fs.open("data/x").read_all() == again, "after a power loss everything that is there is on the platter"


def test_bytes_before_a_write_in_its_sector_are_never_harmed() -> None:
    for seed in range(500):
        fs = SimFs()
        file = file_with(fs, "data/x", b"s" * 100 + bytes(412))
        file.pwrite(100, b"new" * 20)
        fs.power_loss(random.Random(seed))
        assert fs.open("data/x").pread(0, 100) == b"s" * 100


def test_power_loss_finds_every_kind_of_tear() -> None:
    """Nothing, all, a prefix, a later sector without an earlier one, a cut inside a sector followed by old, zero and garbage bytes."""
    seen = set()
    new = b"".join(bytes([65 + sector]) * SECTOR for sector in range(4))
    for seed in range(1000):
        fs = SimFs()
        file = file_with(fs, "data/x", b"o" * 2048)
        file.pwrite(0, new[:1000])
        file.pwrite(1000, new[1000:])
        fs.power_loss(random.Random(seed))
        now = fs.open("data/x").read_all()
        sectors = [now[at : at + SECTOR] for at in range(0, 2048, SECTOR)]
        kept = [sector == new[at : at + SECTOR] for at, sector in zip(range(0, 2048, SECTOR), sectors, strict=True)]
        seen.add("nothing" if now == b"o" * 2048 else "all" if all(kept) else "some")
        if kept[0] and not kept[3]:
            seen.add("prefix")
        if kept[3] and not kept[0]:
            seen.add("reordered")
        for index, sector in enumerate(sectors):
            letter = 65 + index
            if sector[0] == letter and not kept[index] and index != 1:
                rest = sector.lstrip(bytes([letter]))
                seen.add("torn, old" if not rest.strip(b"o") else "torn, zero" if not rest.strip(b"\0") else "torn, garbage")
    assert seen == {"nothing", "all", "some", "prefix", "reordered", "torn, old", "torn, zero", "torn, garbage"}


def test_a_name_is_durable_only_after_its_folder_was_synced() -> None:
    def prepare(fs: SimFs) -> None:
        fs.makedirs("data/new")
        file = fs.create("data/new/x")
        file.pwrite(0, b"abc")
        file.fsync()

    assert {content(after_power_loss(seed, prepare), "data/new/x") for seed in range(100)} == {None, b"abc"}

    def folder_only(fs: SimFs) -> None:
        prepare(fs)
        fs.fsync_dir("data/new")

    assert {content(after_power_loss(seed, folder_only), "data/new/x") for seed in range(100)} == {None, b"abc"}, "its parent forgot the folder"

    def both(fs: SimFs) -> None:
        folder_only(fs)
        fs.fsync_dir("data")

    assert {content(after_power_loss(seed, both), "data/new/x") for seed in range(100)} == {b"abc"}


def test_a_rename_is_atomic_and_can_be_lost() -> None:
    def prepare(fs: SimFs) -> None:
        file_with(fs, "data/x", b"old")
        file_with(fs, "data/x.tmp", b"new")
        fs.rename("data/x.tmp", "data/x")

    for seed in range(100):
        fs = after_power_loss(seed, prepare)
        assert (content(fs, "data/x"), content(fs, "data/x.tmp")) in {(b"old", b"new"), (b"new", None)}
    assert {content(after_power_loss(seed, prepare), "data/x") for seed in range(50)} == {b"old", b"new"}


def test_renaming_without_syncing_the_bytes_can_leave_an_empty_or_zeroed_file() -> None:
    def prepare(fs: SimFs) -> None:
        fs.create("data/x.tmp").pwrite(0, b"n" * 1000)
        fs.rename("data/x.tmp", "data/x")
        fs.fsync_dir("data")

    outcomes = {content(after_power_loss(seed, prepare), "data/x") for seed in range(300)}
    assert {b"", bytes(1000), b"n" * 1000} <= outcomes


def test_an_unlink_can_be_undone() -> None:
    def prepare(fs: SimFs) -> None:
        file_with(fs, "data/x", b"old")
        fs.unlink("data/x")

    assert {content(after_power_loss(seed, prepare), "data/x") for seed in range(50)} == {None, b"old"}


def test_failed_fsync_loses_the_bytes_though_reads_show_them_and_the_next_one_succeeds() -> None:
    fs = SimFs()
    file = file_with(fs, "data/x", b"old")
    file.pwrite(0, b"new")
    fs.fsync_errors = 1
    with pytest.raises(OSError, match="data/x") as failed:
        file.fdatasync()
    assert failed.value.errno == errno.EIO
    file.fdatasync()
    assert file.read_all() == b"new"
    fs.kill()
    file = fs.open("data/x")
    file.fdatasync()
    assert file.read_all() == b"new", "even the next process is fooled"
    file.forget_cached()
    assert file.read_all() == b"old"


def test_fsync_errors_hit_only_the_chosen_paths() -> None:
    fs = SimFs()
    log, other = fs.create("data/log"), fs.create("data/other")
    fs.fsync_errors, fs.fsync_error_filter = 1, lambda path: path.endswith("log")
    other.fsync()
    fs.fsync_dir("data")
    with pytest.raises(OSError, match="data/log"):
        log.fsync()
    log.fsync()


def test_capacity_is_a_budget_of_bytes() -> None:
    fs = SimFs(capacity_bytes=10_000)
    file = fs.create("data/x")
    file.zero_fill(8_192)
    file.pwrite(0, b"inside the file there is always room")
    with pytest.raises(OSError, match="data/x") as full:
        file.pwrite(8_192, bytes(2_000))
    assert full.value.errno == errno.ENOSPC
    other = fs.create("data/y")
    with pytest.raises(OSError, match="data/y"):
        other.zero_fill(4_096)
    assert fs.free_bytes("data") < SECTOR
    fs.unlink("data/y")
    fs.unlink("data/x")
    assert fs.free_bytes("data") == 10_000
    fs.power_loss(random.Random(1))
    assert fs.free_bytes("data") == 10_000 - sum(len(file.cached) for _, file in fs.files())


def test_rot_hits_written_durable_bytes_of_the_chosen_file() -> None:
    for seed in range(200):
        fs = SimFs()
        written = bytes([1 + seed % 255]) * 1300
        file = file_with(fs, "data/x", written + bytes(5000))
        file_with(fs, "data/spare", bytes(5000))
        file_with(fs, "data/y", b"other")
        rot = fs.rot(random.Random(seed), lambda path: path != "data/y")
        assert rot is not None and rot.path == "data/x" and rot.offset + rot.length <= 1300
        now = file.read_all()
        assert now[rot.offset] != written[rot.offset] and now[1300:] == bytes(5000)
        changed = [index for index in range(1300) if now[index] != written[index]]
        assert (changed[0], changed[-1]) == (rot.offset, rot.offset + rot.length - 1)
        assert "data/x: " in str(rot)
        fs.power_loss(random.Random(seed))
        assert fs.open("data/x").read_all() == now
    assert SimFs().rot(random.Random(1)) is None


def test_fuse_burns_in_the_counted_call_and_everything_after_is_dead() -> None:
    for count, part, expected in [(1, 0.0, None), (1, 1.0, b""), (2, 0.0, b""), (2, 0.5, b"ab"), (2, 1.0, b"abcd"), (3, 0.0, b"abcd")]:
        fs = SimFs()
        fs.crash_after_ops(count, part)
        with pytest.raises(SimCrash):
            file_with(fs, "data/x", b"abcd")
        with pytest.raises(SimCrash):
            fs.listdir("data")
        fs.kill()
        assert content(fs, "data/x") == expected
        fs.makedirs("data/the/fuse/is/gone")


def test_equal_seeds_give_equal_disks() -> None:
    def run(seed: int) -> list[tuple[str, bytes]]:
        rng = random.Random(seed)
        fs = SimFs()
        for number in range(10):
            file = fs.create(f"data/{number}")
            for _ in range(5):
                file.pwrite(rng.randrange(2000), rng.randbytes(rng.randrange(1, 900)))
            if rng.random() < 0.3:
                file.fsync()
            if rng.random() < 0.3:
                fs.fsync_dir("data")
        fs.power_loss(rng)
        fs.rot(rng)
        return [(path, bytes(file.durable)) for path, file in fs.files()]

    assert [run(seed) for seed in range(10)] == [run(seed) for seed in range(10)]
    assert run(1) != run(2)
