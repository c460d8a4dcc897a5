"""A real local cluster for tests: separate processes started by `anabranch dev`, and the hands that hurt them one by one.

Before us: the `anabranch` command. After us: conformance/, clients/, chaos.py, bench/. What we know of a node is what `cluster.json` says, so a
node is started again exactly as it was. Not here: any judgement; whoever uses us looks at what the clients saw."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
PORTS_PER_NODE = 10
POLL_S = 0.05


class ClusterFailed(RuntimeError):
    """A process did not do what was asked within its time; the text ends with what it wrote."""


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that nobody listens on. Below the ephemeral range, so that no client's own port takes one."""
    for first in range(20_000 + os.getpid() % 400 * 20, 32_000, max(count, PORTS_PER_NODE)):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise ClusterFailed("no free ports between 20000 and 32000")


@dataclass
class Node:
    name: str
    pid: int
    client: str
    admin: str
    peer: str
    argv: list[str]
    env: dict[str, str]
    started_by_us: subprocess.Popen[bytes] | None = None
    """A node that we restarted is our child; the others are children of `anabranch dev`."""
    log: Path = field(default_factory=Path)

    @property
    def base_url(self) -> str:
        return f"http://{self.client}"

    def is_alive(self) -> bool:
        if self.started_by_us is not None:
            return self.started_by_us.poll() is None
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def get(self, path: str, timeout_s: float = 2.0) -> tuple[int, bytes]:
        """GET on the admin plane; status 0: no answer."""
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=timeout_s) as response:
                return int(response.status), response.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()
        except OSError:
            return 0, b""

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def status(self, timeout_s: float = 2.0) -> dict[str, Any]:
        code, body = self.get("/admin/v1/status", timeout_s)
        return json.loads(body) if code == 200 else {}

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Cluster:
    """`with Cluster(3) as cluster:` has three ready nodes; leaving the block ends them and, unless `keep`, deletes their data."""

    def __init__(self, nodes: int, data: Path | None = None, extra: tuple[str, ...] = (), env: dict[str, str] | None = None) -> None:
        self.size = nodes
        self.keep = data is not None
        self.data = Path(tempfile.mkdtemp(prefix="anabranch-cluster-")) if data is None else data
        self.port = free_port(PORTS_PER_NODE * nodes)
        self.extra = extra
        self.env = env or {}
        self.nodes: list[Node] = []
        self._dev: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if not self.keep and kind is None:
            shutil.rmtree(self.data, ignore_errors=True)

    # --- the whole -------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        described = self.data / "cluster.json"
        before = described.stat().st_mtime_ns if described.exists() else 0  # an old one names dead processes, but holds the cluster's id
        command = [sys.executable, "-m", "anabranch_node.main", "dev", "--nodes", str(self.size), "--data", str(self.data)]
        command += ["--port", str(self.port), *self.extra]
        path = os.pathsep.join(str(ROOT / part) for part in ("proto", "node", "."))
        env = {**os.environ, "PYTHONPATH": path, **self.env}
        with (self.data / "dev.log").open("ab") as log:
            self._dev = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=ROOT)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.nodes:
            self._check_deadline(deadline, "cluster.json")
            with contextlib.suppress(OSError, ValueError, KeyError):
                if described.stat().st_mtime_ns > before and all(node.pid and node.is_alive() for node in read_cluster(described)):
                    self.nodes = read_cluster(described)
            time.sleep(POLL_S)
        for node in self.nodes:
            self.wait_ready(node, deadline - time.monotonic())

    def _check_deadline(self, deadline: float, what: str) -> None:
        if self._dev is not None and self._dev.poll() is not None:
            raise ClusterFailed(f"`anabranch dev` ended with {self._dev.returncode}\n{self.log_tail()}")
        if time.monotonic() > deadline:
            raise ClusterFailed(f"{what} did not come in time\n{self.log_tail()}")

    def wait_ready(self, node: Node, timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not node.is_ready():
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{node.name} is not ready\n{self.log_tail()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            if node.started_by_us is not None:
                _end(node.started_by_us)
        if self._dev is not None:
            if self._dev.poll() is None:
                self._dev.send_signal(signal.SIGINT)
            _end(self._dev, ask=False)
        for node in self.nodes:  # should `dev` have died without ending its children
            if node.is_alive():
                node.signal(signal.SIGKILL)

    def log_tail(self, lines: int = 15) -> str:
        parts = []
        for log in sorted([*self.data.glob("*.log"), *self.data.glob("*/log")]):
            text = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {log.relative_to(self.data)}\n" + "\n".join(text))
        return "\n".join(parts)

    # --- one node --------------------------------------------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        """kill -9; returns when the process is gone."""
        node.signal(signal.SIGKILL)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while node.is_alive():
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{node.name} survives SIGKILL")
            time.sleep(0.005)

    def pause(self, node: Node) -> None:
        node.signal(signal.SIGSTOP)

    def resume(self, node: Node) -> None:
        node.signal(signal.SIGCONT)

    def restart(self, node: Node) -> None:
        """Start a dead node again as it was first started. Does not wait for it to be ready."""
        assert not node.is_alive(), f"{node.name} lives"
        node.log = self.data / f"{node.name}-restarted.log"
        with node.log.open("ab") as log:
            node.started_by_us = subprocess.Popen(
                node.argv, env={**os.environ, **node.env}, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT
            )
        node.pid = node.started_by_us.pid

    def living(self) -> Iterator[Node]:
        return (node for node in self.nodes if node.is_alive())


def _end(process: subprocess.Popen[bytes], ask: bool = True) -> None:
    if ask and process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_cluster(path: Path) -> list[Node]:
    described = json.loads(path.read_text())
    return [
        Node(each["name"], int(each["pid"]), each["client"], each["admin"], each["peer"], list(each["argv"]), dict(each["env"]))
        for each in described["nodes"]
    ]


def group_leaders(status: dict[str, Any]) -> dict[int, int]:
    """group -> node id of its leader (0: unknown), as one node's status tells it."""
    groups = status.get("groups", [])
    return {int(each["group"]): int(each.get("leader_node", 0)) for each in groups}


def led_groups(status: dict[str, Any]) -> set[int]:
    """The groups that the node which told this status leads itself."""
    return {int(each["group"]) for each in status.get("groups", []) if each.get("role") == "leader"}


def cpu_seconds(pids: list[int]) -> float:
    """User and system time that these processes have used so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / ticks
