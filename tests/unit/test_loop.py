"""The loop's own decisions: who syncs a write, and that reports of the disk never overtake one another."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from anabranch_node.core import effects as fx
from anabranch_node.drivers.loop import INLINE_BYTES_MAX, INLINE_PAUSE_RATIO, INLINE_SYNC_MAX_S, NodeLoop


class FakeService:
    """Answers each turn with the writes that the test lined up, and notes what it was told."""

    def __init__(self) -> None:
        self.pending = 0
        self.effects: list[list[Any]] = []
        self.synced: list[int] = []

    def turn(self, now_ms: int, events: list[Any]) -> list[Any]:
        self.synced += [event.ticket for event in events if isinstance(event, fx.Synced)]
        return self.effects.pop(0) if self.effects else []


class FakeDisk:
    """Its thread is always done at once, and its report comes when the test says so."""

    queued_bytes = 0

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.inline: list[int] = []

    def submit(self, effects: list[fx.WalWrite]) -> bool:
        self.submitted += [effect.ticket for effect in effects]
        return True

    def perform_now(self, effects: list[fx.WalWrite]) -> list[Any]:
        self.inline += [effect.ticket for effect in effects]
        return [fx.Synced(effects[-1].ticket)]


def write(ticket: int, size: int = 100) -> fx.WalWrite:
    return fx.WalWrite(ticket, 1, 0, bytes(size))


def test_a_lone_write_is_synced_by_the_loop_but_never_overtakes_the_thread() -> None:
    async def scenario() -> None:
        service, disk = FakeService(), FakeDisk()
        problems: list[str] = []
        loop = NodeLoop(cast(Any, service), cast(Any, None), 50, problems.append)
        loop.disk, loop.snapshots = cast(Any, disk), cast(Any, object())

        async def turn(*effects: Any) -> None:
            service.effects.append(list(effects))
            loop.push(fx.Tick())
            for _ in range(3):  # the turn, and the one for what was synced in it
                await asyncio.sleep(0)

        await turn(write(1))
        assert disk.inline == [1] and service.synced == [1]
        await turn(write(2, INLINE_BYTES_MAX + 1))
        assert disk.submitted == [2], "a large one is the thread's"
        await turn(write(3))
        assert disk.submitted == [2, 3], "the thread has not reported 2 yet"
        loop.report([fx.Synced(3)])
        await turn()
        await turn(write(4))
        assert disk.inline == [1, 4]
        service.pending = 2
        await turn(write(5))
        assert disk.submitted == [2, 3, 5], "others wait for the loop"
        assert service.synced == [1, 3, 4]
        assert problems == []
        loop.stop()

    uvloop.run(asyncio.wait_for(scenario(), 10))


def test_a_slow_sync_sends_writes_to_the_thread_for_ten_times_as_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of a second for one hiccup among a hundred syncs left a lone writer with the thread most of the time."""
    now_s = 100.0
    clock = SimpleNamespace(perf_counter=lambda: now_s, time_ns=lambda: int(now_s * 1e9))
    monkeypatch.setattr("anabranch_node.drivers.loop.time", clock)
    slow_s = INLINE_SYNC_MAX_S * 1.5

    class SlowDisk(FakeDisk):
        def perform_now(self, effects: list[fx.WalWrite]) -> list[Any]:
            nonlocal now_s
            now_s += slow_s
            return super().perform_now(effects)

    async def scenario() -> None:
        nonlocal now_s
        service, disk = FakeService(), SlowDisk()
        loop = NodeLoop(cast(Any, service), cast(Any, None), 50, lambda _: None)
        loop.disk, loop.snapshots = cast(Any, disk), cast(Any, object())

        async def turn(*effects: Any) -> None:
            service.effects.append(list(effects))
            loop.push(fx.Tick())
            for _ in range(3):
                await asyncio.sleep(0)

        await turn(write(1))
        assert disk.inline == [1]
        now_s = 100.0 + slow_s * (INLINE_PAUSE_RATIO - 1)
        await turn(write(2))
        assert disk.submitted == [2]
        loop.report([fx.Synced(2)])
        await turn()
        now_s = 100.0 + slow_s * (INLINE_PAUSE_RATIO + 1)
        await turn(write(3))
        assert disk.inline == [1, 3]
        loop.stop()

    uvloop.run(scenario())
