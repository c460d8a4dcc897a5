"""What a frame costs on the peer link: frames/s and CPU microseconds per frame on each side, for two processes on loopback.

The far side sends every frame's acknowledgement (8 bytes) back over its own lane, as Raft does; `window` frames are under way at once.
`python -m tests.bench.peer_link [SECONDS]` prints the table. Not measured: Raft, disks, TLS."""

import asyncio
import os
import subprocess
import sys
import time

import uvloop

from anabranch_node.drivers.grpc_peer import Hello, PeerNet, PeerOptions

SWITCH_INTERVAL_S = 0.0005
CASES = ((200, 1), (200, 64), (64 << 10, 1), (64 << 10, 64))


async def _no_calls(method: str, payload: bytes) -> bytes:
    raise LookupError(method)


async def far(address: str) -> None:
    def on_frame(node: int, data: bytes) -> None:
        if data == b"cpu":
            net.send(1, True, b"cpu:%f" % time.process_time())
        else:
            net.send(1, True, data[:8])

    def on_up(node: int, bulk: bool) -> None:
        if bulk:
            net.send(1, True, b"up")

    net = PeerNet(PeerOptions(), Hello(1, "bench", 2, 2), on_frame, lambda node: os._exit(0), _no_calls, on_up)
    await net.start("127.0.0.1", 0)
    net.set_peers({1: (1, address)})
    print(net.port, flush=True)
    await asyncio.Event().wait()


class Near:
    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.far_up = asyncio.Event()
        self.done = asyncio.Event()
        self.far_cpu_s = 0.0
        self.acknowledged = self.sent = 0
        self.end = 0.0
        self.frame = b""
        self.net = PeerNet(PeerOptions(), Hello(1, "bench", 1, 1), self.on_frame, lambda node: None, _no_calls, self.on_up)

    def on_up(self, node: int, bulk: bool) -> None:
        if bulk:
            self.up.set()

    def on_frame(self, node: int, data: bytes) -> None:
        if data.startswith(b"cpu:"):
            self.far_cpu_s = float(data[4:])
            self.done.set()
            return
        if data == b"up":
            self.far_up.set()
            return
        self.acknowledged += 1
        if time.perf_counter() < self.end:
            self.send()
        elif self.acknowledged == self.sent:
            self.done.set()

    def send(self) -> None:
        assert self.net.send(2, True, self.frame)
        self.sent += 1

    async def ask_far_cpu_s(self) -> float:
        self.done.clear()
        assert self.net.send(2, True, b"cpu")
        await self.done.wait()
        return self.far_cpu_s

    async def measure(self, size: int, window: int, seconds: float) -> str:
        self.frame = os.urandom(size)
        far_cpu_s = await self.ask_far_cpu_s()
        self.acknowledged = self.sent = 0
        self.done.clear()
        cpu_s, start = time.process_time(), time.perf_counter()
        self.end = start + seconds
        for _ in range(window):
            self.send()
        await self.done.wait()
        count, elapsed_s, cpu_s = self.acknowledged, time.perf_counter() - start, time.process_time() - cpu_s
        far_cpu_s = await self.ask_far_cpu_s() - far_cpu_s
        return f"{size:>8} {window:>6} {count / elapsed_s:>10.0f} {cpu_s / count * 1e6:>10.1f} {far_cpu_s / count * 1e6:>10.1f}"


async def near(seconds: float) -> None:
    side = Near()
    await side.net.start("127.0.0.1", 0)
    child = subprocess.Popen([sys.executable, "-m", "tests.bench.peer_link", "--far", f"127.0.0.1:{side.net.port}"], stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        side.net.set_peers({2: (2, f"127.0.0.1:{port}")})
        await asyncio.gather(side.up.wait(), side.far_up.wait())
        print(f"load average {os.getloadavg()[0]:.1f}")
        print("   bytes window   frames/s near cpu us  far cpu us")
        for size, window in CASES:
            print(await side.measure(size, window, seconds), flush=True)
    finally:
        child.kill()
        child.wait()
        await side.net.stop()


def main() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if sys.argv[1:2] == ["--far"]:
        uvloop.run(far(sys.argv[2]))
    else:
        uvloop.run(near(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0))


if __name__ == "__main__":
    main()
