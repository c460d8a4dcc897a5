"""A local cluster of separate processes and the file that describes it. Before us: dev.py, which talks to the person. After us: `serve` children.

`cluster.json` is written whole and renamed, before the processes it names are asked anything: the cluster id must survive whoever dies next.
Each node's argv, env and cwd in it are the very ones that started it. A child that dies stays dead: whoever kills a node wants to see what happens.
Not here: restarting, and anything that production uses."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from anabranch_node.cli.failure import Failed

FORMAT: Final = 1
NODE_COMMAND: Final = (sys.executable, "-m", "anabranch_node.main", "serve")
LOG_TAIL_LINES: Final = 15
KEPT_VARIABLES: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
"""The children's environment is only these, PYTHON* and ANABRANCH_*: it is written to a file, where nobody's secrets belong."""


class DevNode(msgspec.Struct):
    name: str
    pid: int
    client: str
    admin: str
    peer: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str


class DevFile(msgspec.Struct):
    format: int
    cluster_id: str
    replication_factor: int
    group_count: int
    port: int
    initialized: bool
    nodes: list[DevNode]


class DevCluster:
    def __init__(self, data: Path, file: DevFile) -> None:
        self.data = data
        self.file = file
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.reported: set[int] = set()
        self._lock = -1

    @staticmethod
    def stored(data: Path) -> DevFile | None:
        path = data / "cluster.json"
        try:
            file = msgspec.json.decode(path.read_bytes(), type=DevFile)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as wrong:
            raise Failed(f"{path}: cannot be understood ({wrong}); it holds the cluster's id, so it is not replaced") from None
        if file.format > FORMAT:
            raise Failed(f"{path}: was written by a newer version (format {file.format})")
        return file

    def lock(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.data / "dev.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"{self.data}: another `anabranch dev` runs here; stop it, or choose another --data or --port") from None

    def plan(self, count: int, settings: list[str]) -> None:
        """Names, addresses and command lines of all nodes."""
        env = _environment()
        peers = ",".join(_address(self.file.port, index, 2) for index in range(count))
        self.file.nodes = []
        for index in range(count):
            name = f"node{index}"
            client, admin, peer = (_address(self.file.port, index, plane) for plane in range(3))
            argv = [*NODE_COMMAND, "--name", name, "--data-dir", str(self.data / name / "data")]
            argv += ["--client-listen", client, "--admin-listen", admin, "--peer-listen", peer, "--peers", peers, *settings]
            self.file.nodes.append(
                DevNode(name, 0, client=client, admin=admin, peer=peer, argv=argv, env=env, cwd=os.getcwd(), log=str(self.data / name / "log"))
            )

    def check_ports(self) -> None:
        for node in self.file.nodes:
            for address in (node.client, node.admin, node.peer):
                host, _, port = address.rpartition(":")
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        probe.bind((host, int(port)))
                    except OSError as taken:
                        raise Failed(
                            f"{address}, for {node.name}, cannot be used: {(taken.strerror or '').lower()}."
                            " Perhaps a node of an earlier run lives on; else choose another --port"
                        ) from None

    def save(self) -> None:
        path = self.data / "cluster.json"
        fresh = path.with_suffix(".new")
        with open(fresh, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self.file), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)

    def start(self) -> None:
        for index, node in enumerate(self.file.nodes):
            folder = Path(node.log).parent
            (folder / "data").mkdir(parents=True, exist_ok=True)
            with open(node.log, "ab") as log:
                # Its own session: Ctrl-C reaches only us, and we stop the children in our own order.
                child = subprocess.Popen(
                    node.argv, env=node.env, cwd=node.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self.children[index] = child
            node.pid = child.pid
        self.save()

    def newly_dead(self) -> list[tuple[DevNode, str, str]]:
        """Nodes that ended since the last call: (node, how, last lines of its log)."""
        found = []
        for index, child in self.children.items():
            code = child.poll()
            if code is not None and index not in self.reported:
                self.reported.add(index)
                node = self.file.nodes[index]
                found.append((node, ended(code), log_tail(node.log)))
        return found

    def alive(self) -> int:
        return sum(child.poll() is None for child in self.children.values())

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)
        # One that was stopped by hand (SIGSTOP) would never see it.
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True


def _address(port: int, index: int, plane: int) -> str:
    return f"127.0.0.1:{port + 10 * index + plane}"


def _environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES or name.startswith(("PYTHON", "ANABRANCH_"))}
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in env["PYTHONPATH"].split(os.pathsep) if part)
    return env


def ended(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def log_tail(path: str, lines: int = LOG_TAIL_LINES) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - (16 << 10)))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
    except OSError as unreadable:
        return f"({unreadable})"
