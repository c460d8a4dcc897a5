"""The verbs about nodes and clusters: serve's flags, init, status, wait-ready, and a whole `dev` run with fake nodes as real processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch_node.cli.app import VERBS, application
from anabranch_node.config import NodeConfig, reference
from tests.unit.fake_node import FakeNode

FAKE_NODE = Path(__file__).with_name("fake_node.py")
ROOT = FAKE_NODE.parents[2]


def run(*argv: str, env: dict[str, str] | None = None) -> tuple[Result, list[NodeConfig]]:
    served: list[NodeConfig] = []

    def serve(config: NodeConfig) -> int:
        served.append(config)
        return 5

    return CliRunner().invoke(application(serve), list(argv), env=env, prog_name="anabranch"), served


@pytest.fixture
def node() -> Iterator[FakeNode]:
    made = FakeNode()
    yield made
    made.stop()


def test_every_verb_has_help_and_examples() -> None:
    for verb in VERBS:
        result, _ = run(verb, "--help")
        assert result.exit_code == 0, result.output
        assert "Examples:" in result.output or verb == "config-reference", verb


def test_usage_errors_are_two() -> None:
    assert run("nonsense")[0].exit_code == 2
    assert run("serve", "--nonsense")[0].exit_code == 2
    assert run("append")[0].exit_code == 2


def test_serve_hands_over_a_config_and_its_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('zone = "z1"\ntick_ms = 20\n')
    argv = ["serve", "--name", "a", "--config", str(file), "--peers", "h:1,h:2", "--peers", "h:3", "--body-bytes-max", "1MiB", "--insecure"]
    result, served = run(*argv, env={"ANABRANCH_TICK_MS": "25"})
    assert result.exit_code == 5, result.output
    (config,) = served
    assert (config.name, config.zone, config.tick_ms, config.insecure) == ("a", "z1", 25, True)
    assert (config.peers, config.body_bytes_max) == (("h:1", "h:2", "h:3"), 1 << 20)


def test_serve_refuses_settings_with_two() -> None:
    result, served = run("serve", "--name", "a", "--client-listen", "0.0.0.0:1")
    assert result.exit_code == 2 and "--insecure" in result.stderr and served == []
    result, served = run("serve", "--name", "a", env={"ANABRANCH_NONSENSE": "1"})
    assert result.exit_code == 2 and "ANABRANCH_NONSENSE" in result.stderr and served == []


def test_serve_can_only_check() -> None:
    result, served = run("serve", "--name", "a", "--check")
    assert result.exit_code == 0 and served == []


def test_config_reference() -> None:
    assert run("config-reference")[0].stdout == reference()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result, _ = run("completion", shell)
    assert result.exit_code == 0 and "_ANABRANCH_COMPLETE" in result.stdout


def test_init_prints_the_id_first_and_can_be_repeated(node: FakeNode) -> None:
    result, _ = run("init", "--admin", node.url, "--replication-factor", "1", "--group-count", "16")
    assert result.exit_code == 0, result.output
    first = re.match(r"cluster id: ([0-9a-f]{16})\n", result.stdout)
    assert first and node.world.cluster_id == first[1] and "is made" in result.stdout
    again, _ = run("init", "--admin", node.url, "--cluster-id", first[1], "--json")
    assert again.exit_code == 0 and json.loads(again.stdout)["created"] is False
    other, _ = run("init", "--admin", node.url)
    assert other.exit_code == 1 and "another_cluster" in other.stderr


def test_init_waits_for_a_node_that_is_not_there_yet(node: FakeNode) -> None:
    node.busy, node.drop_answers = 2, 1
    assert run("init", "--admin", node.url)[0].exit_code == 0
    node.stop()
    assert run("init", "--admin", node.url, "--timeout", "0.1")[0].exit_code == 3
    node.__init__()  # type: ignore[misc]  # so that the fixture has something to stop


def test_init_goes_to_one_node_with_a_plain_id(node: FakeNode) -> None:
    assert run("init", "--admin", f"{node.url},{node.url}")[0].exit_code == 2
    assert run("init", "--admin", node.url, "--cluster-id", "a/b")[0].exit_code == 2
    assert node.world.cluster_id == ""


def test_wait_ready(node: FakeNode) -> None:
    result, _ = run("wait-ready", "--admin", node.url, "--timeout", "0.2", "--json")
    assert result.exit_code == 3 and json.loads(result.stdout)["waiting"] == {node.url: "waiting for init"}
    node.world.cluster_id = "c"
    assert run("wait-ready", env={"ANABRANCH_ADMIN": node.url})[0].exit_code == 0


def test_status(node: FakeNode) -> None:
    node.world.cluster_id = "c1"
    shown, _ = run("status", "--admin", node.url, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "cluster c1" in shown.stdout and "fake fenced: damaged log" in shown.stdout and "meta" in shown.stdout and "gone" in shown.stdout
    raw, _ = run("status", "--admin", node.url, "--json")
    assert json.loads(raw.stdout)["groups"][1]["fenced"] == "damaged log"
    every, _ = run("status", "--admin", node.url, "--json", "--all")
    assert len(json.loads(every.stdout)) == 1
    node.stop()
    assert run("status", "--admin", node.url)[0].exit_code == 3
    node.__init__()  # type: ignore[misc]


LAUNCH = """
import sys
from anabranch_node.cli import dev_cluster
from anabranch_node.cli.app import application
dev_cluster.NODE_COMMAND = (sys.executable, sys.argv.pop(1), "serve")
application(lambda config: 0).main(prog_name="anabranch")
"""


def free_port() -> int:
    """The first of a block that is free now. Another process may take it in between; tests below the ephemeral range make that unlikely."""
    for port in range(20_000 + os.getpid() % 500 * 20, 32_000, 40):
        try:
            for offset in (0, 1, 2, 10, 11, 12):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        return port
    raise AssertionError


class Dev:
    """`anabranch dev` as a process, its output in files."""

    def __init__(self, tmp_path: Path, *argv: str) -> None:
        self.data = tmp_path / "data"
        self.out, self.err = tmp_path / "out", tmp_path / "err"
        env = {**os.environ, "PYTHONPATH": f"{ROOT}/proto:{ROOT}/node:{ROOT}", "SECRET_TOKEN": "s3cret"}
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, str(FAKE_NODE), "dev", "--data", str(self.data), *argv], env=env, stdout=out, stderr=err
            )

    def wait_for(self, text: str, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.out.read_text() + self.err.read_text():
            assert time.monotonic() < deadline, (text, self.out.read_text(), self.err.read_text())
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)


def test_dev_from_start_to_restart(tmp_path: Path) -> None:
    port = free_port()
    dev = Dev(tmp_path, "--nodes", "2", "--port", str(port), "--group-count", "4", "--set", "tick_ms=20")
    try:
        dev.wait_for("Ctrl-C stops all")
        file = json.loads((dev.data / "cluster.json").read_text())
        assert (file["replication_factor"], file["group_count"], file["initialized"]) == (2, 4, True)
        first, second = file["nodes"]
        assert (first["client"], first["admin"], first["peer"]) == tuple(f"127.0.0.1:{port + plane}" for plane in range(3))
        assert second["client"] == f"127.0.0.1:{port + 10}" and second["name"] == "node1"
        assert "--tick-ms" in second["argv"] and "s3cret" not in json.dumps(file)
        banner = dev.out.read_text()
        assert all(line in banner for line in ("curl -i -X PUT", "curl -N", f"kill -9 {first['pid']}", "status --watch"))

        (tmp_path / "x").mkdir()
        another = Dev(tmp_path / "x", "--data", str(dev.data))
        assert another.process.wait(30) == 1 and "another `anabranch dev`" in another.err.read_text()

        os.kill(second["pid"], signal.SIGKILL)
        dev.wait_for("was ended by SIGKILL")
        dev.wait_for("node1 is here")
        dev.wait_for("1 of 2 nodes are left")
    finally:
        code = dev.end(signal.SIGINT)
    assert code == 0 and "node0 stopped" in dev.err.read_text()

    dev = Dev(tmp_path)
    try:
        dev.wait_for("Ctrl-C stops all")
        again = json.loads((dev.data / "cluster.json").read_text())
        assert again["cluster_id"] == file["cluster_id"] and len(again["nodes"]) == 2
    finally:
        assert dev.end() == 0


def test_dev_shows_why_a_node_did_not_start(tmp_path: Path) -> None:
    dev = Dev(tmp_path, "--nodes", "2", "--port", str(free_port()), "--set", "zone=FAKE_DEAD")
    assert dev.process.wait(30) == 1
    said = dev.err.read_text()
    assert "node1 exited with 7" in said and "cannot go on" in said


def test_dev_refuses_what_cannot_work(tmp_path: Path, node: FakeNode) -> None:
    port = int(node.address.rpartition(":")[2])
    result, _ = run("dev", "--data", str(tmp_path / "a"), "--port", str(port), "--nodes", "1")
    assert result.exit_code == 1 and "cannot be used" in result.stderr
    assert run("dev", "--data", str(tmp_path / "b"), "--set", "nonsense=1")[0].exit_code == 2
    assert run("dev", "--data", str(tmp_path / "b"), "--set", "tick_ms=x")[0].exit_code == 2
    stored = tmp_path / "a" / "cluster.json"
    file = {"format": 1, "cluster_id": "c", "replication_factor": 1, "group_count": 4, "port": 4000, "initialized": True, "nodes": []}
    stored.write_text(json.dumps(file))
    assert "port 4000" in run("dev", "--data", str(tmp_path / "a"), "--port", "5000")[0].stderr
    assert "4 groups" in run("dev", "--data", str(tmp_path / "a"), "--group-count", "5")[0].stderr
    stored.write_text("{}")
    assert "not replaced" in run("dev", "--data", str(tmp_path / "a"))[0].stderr
