"""`python -m tests.bench.http_bench`: our cluster of one and of three durable nodes next to other servers of the protocol, in one run on one machine.

Before us: tests/process/cluster.py and the servers of others. After us: http_load.py, one process per case. Servers run one after the other, never
beside each other; the load has the same CPUs as the server. Every figure stands with CPU microseconds per operation, since machines are shared, and
as a ratio to each reference. The floors are those of the project; none makes the run fail, a wrong answer does. Not here: the core and the WAL
alone (run.py), and a variant with clients that know the leaders: connections are spread blindly."""

import argparse
import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench import fsync
from tests.bench.http_load import Job, Result
from tests.bench.run import machine
from tests.conformance import node_cache
from tests.process.cluster import ROOT, Cluster, ClusterFailed, free_port

RUST_SERVER: Final = ROOT.parent / "anabranch-cargo-cache" / "bin" / "durable-streams-server"
RUST_CRATE: Final = "durable-streams@0.1.5"
RUST_BUILD_TIMEOUT_S: Final = 900
REFERENCE_SCRIPT: Final = Path(__file__).resolve().parent / "reference" / "server.mjs"
READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
JOB_EXTRA_S: Final = 240.0
READERS: Final = 1_000
RAW_SYNC_S: Final = 1.0
WRITER_SLACK_US: Final = 250.0

ONE, THREE = "1 node", "3 nodes"
MEMORY, FILE, RUST = "npm memory", "npm file", "rust wal"
SERVERS: Final = (MEMORY, FILE, RUST, ONE, THREE)
REFERENCES: Final = (MEMORY, FILE, RUST)


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    connections: int
    unit: str = "ops/s"


CASES: Final = (
    Case("append 256 B, 1 connection", "append", 1),
    Case("append 256 B, 64 connections", "append", 64),
    Case("append 256 B, 256 connections", "append", 256),
    Case("GET 1 KiB, 64 connections", "get", 64),
    Case("1,000 SSE readers", "fan_out", READERS, "events/s"),
    Case("catch-up 100 MiB", "catch_up", 1, "MiB/s"),
)
WRITER, APPEND_64, APPEND_256, GET, SSE, CATCH_UP = (case.name for case in CASES)


@dataclass(frozen=True)
class Floor:
    """`ours` on `case` must be at least `least` times `reference`; for delivery times at most `most` times."""

    case: str
    ours: str
    reference: str
    least: float = 0.0
    aim: float = 0.0
    most: float = 0.0


FLOORS: Final = (
    Floor(APPEND_64, THREE, MEMORY, 0.5, aim=1.0),
    Floor(APPEND_64, THREE, FILE, 5.0),
    Floor(APPEND_256, THREE, MEMORY, 0.9, aim=1.5),
    Floor(GET, ONE, MEMORY, 2.0),
    Floor(GET, THREE, MEMORY, 0.8),
    Floor(CATCH_UP, THREE, MEMORY, 1.0),
    Floor(SSE, THREE, MEMORY, most=1.2),
    Floor(APPEND_64, ONE, RUST, 0.5, aim=1.0),
    Floor(GET, ONE, RUST, 1.0, aim=2.0),
)

Results = dict[str, dict[str, Result]]
"""case -> server -> figures"""


class Skipped(RuntimeError):
    """This server cannot be had on this machine."""


@dataclass
class Running:
    targets: list[str]
    pids: list[int]


# --- the servers -------------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(name: str, folder: Path) -> Iterator[Running]:
    """`folder` is new and on the disk in question."""
    if name in (ONE, THREE):
        with Cluster(1 if name == ONE else 3, folder) as cluster:
            yield Running([node.client for node in cluster.nodes], [node.pid for node in cluster.nodes])
        return
    port = free_port()
    if name == RUST:
        _install_rust_server()
        command = [str(RUST_SERVER), "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(folder), "--durability", "wal"]
    else:
        try:
            script = node_cache.stage(REFERENCE_SCRIPT)
        except (node_cache.NoNode, subprocess.SubprocessError) as missing:
            raise Skipped(str(missing)) from None
        command = ["node", str(script), str(port), *([str(folder)] if name == FILE else [])]
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise ClusterFailed(f"{name} does not listen\n{log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.05)
        yield Running([f"127.0.0.1:{port}"], [process.pid])
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _install_rust_server() -> None:
    """Once, into a cache beside the checkout: about two minutes."""
    if RUST_SERVER.exists():
        return
    if shutil.which("cargo") is None:
        raise Skipped("there is no cargo to build it with")
    print(f"building {RUST_CRATE} into {RUST_SERVER.parents[1]}", file=sys.stderr, flush=True)
    crate, _, version = RUST_CRATE.partition("@")
    command = ["cargo", "install", "--quiet", "--locked", crate, "--version", version, "--root", str(RUST_SERVER.parents[1])]
    if subprocess.run(command, stdout=subprocess.DEVNULL, timeout=RUST_BUILD_TIMEOUT_S, check=False).returncode:
        raise Skipped(f"{RUST_CRATE} could not be built")


def load(job: Job) -> Result:
    """One job in a process of its own, so that no case inherits another's heap."""
    path = os.pathsep.join(str(ROOT / part) for part in ("proto", "node", "."))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.http_load"],
            input=json.dumps(asdict(job)),
            capture_output=True,
            text=True,
            timeout=job.seconds + job.warm_up_s + JOB_EXTRA_S,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": "the load did not end in time"}
    if done.returncode or not done.stdout.strip():
        return {"failed": f"the load ended with {done.returncode}: {done.stderr[-1500:]}"}
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(name: str, directory: Path, cases: list[Case], seconds: float, results: Results) -> None:
    folder = Path(tempfile.mkdtemp(prefix=f"{name.replace(' ', '-')}-", dir=directory))
    try:
        with server(name, folder) as running:
            for case in cases:
                raw_us = _raw_sync_us(directory) if case.name == WRITER else 0.0
                job = Job(
                    case.kind, running.targets, running.pids, f"{case.kind}{case.connections}", case.connections, seconds, min(1.0, seconds / 4)
                )
                result = load(job)
                if case.name == WRITER:
                    # Before and after: the lower one is the harder to come near to.
                    result["raw_sync_us"] = min(raw_us, _raw_sync_us(directory))
                result["load_average"] = os.getloadavg()[0]
                results.setdefault(case.name, {})[name] = result
                print(f"{name:<11} {case.name:<30} {_line(case, result)}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".log").unlink(missing_ok=True)


def _raw_sync_us(directory: Path) -> float:
    with tempfile.TemporaryDirectory(dir=directory) as root:
        return fsync.raw(root, RAW_SYNC_S)["p50_us"]


# --- what is shown -----------------------------------------------------------------------------------------------------------------------


def _line(case: Case, result: Result) -> str:
    if "failed" in result:
        return f"FAILED {result['failed']}"
    return f"{result['ops_per_s']:>9,.0f} {case.unit:<9} p50 {result['p50_ms']:.2f} ms{_wrong(result)}"


def _wrong(result: Result) -> str:
    return f", NOT COUNTED: {result['wrong']}" if result.get("wrong") else ""


def ratio(case: str, ours: str, reference: str, results: Results) -> float | None:
    """Of rates, more is better; for the SSE readers of delivery times, less is better."""
    mine, other = results.get(case, {}).get(ours, {}), results.get(case, {}).get(reference, {})
    figure = "p50_ms" if case == SSE else "ops_per_s"
    if figure not in mine or not other.get(figure):
        return None
    return float(mine[figure]) / float(other[figure])


def judge(results: Results) -> list[dict[str, Any]]:
    verdicts: list[dict[str, Any]] = []
    for floor in FLOORS:
        found = ratio(floor.case, floor.ours, floor.reference, results)
        wanted = f"at most {floor.most:g}x" if floor.most else f"at least {floor.least:g}x" + (f" (aim {floor.aim:g}x)" if floor.aim else "")
        verdict = "not measured"
        if found is not None:
            verdict = "met" if (found <= floor.most if floor.most else found >= floor.least) else "NOT MET"
            if verdict == "met" and floor.aim:
                verdict = "met, aim too" if found >= floor.aim else "met, aim not"
        what = f"{floor.case}: {floor.ours} to {floor.reference}"
        verdicts.append({"what": what, "wanted": wanted, "found": None if found is None else f"{found:.2f}x", "verdict": verdict})
    writer = results.get(WRITER, {}).get(ONE, {})
    found_us = writer["p50_ms"] * 1e3 - writer["raw_sync_us"] if "p50_ms" in writer else None
    verdicts.append(
        {
            "what": f"one writer, {ONE}: p50 above the raw fdatasync of 4 KiB"
            + (f" ({writer['raw_sync_us']:.0f} us)" if found_us is not None else ""),
            "wanted": f"at most {WRITER_SLACK_US:.0f} us",
            "found": None if found_us is None else f"{found_us:.0f} us",
            "verdict": "not measured" if found_us is None else "met" if found_us <= WRITER_SLACK_US else "NOT MET",
        }
    )
    return verdicts


def show(results: Results, verdicts: list[dict[str, Any]]) -> None:
    head = ["", "rate", "p50 ms", "p99 ms", "CPU us/op", "CPUs", "loader us/op", *[f"to {reference}" for reference in REFERENCES], ""]
    for case in CASES:
        if case.name not in results:
            continue
        rows = [[case.name, case.unit, *head[2:]]]
        for name, result in results[case.name].items():
            if "failed" in result:
                rows.append([name, "FAILED", *[""] * (len(head) - 3), result["failed"][:200]])
                continue
            ratios = [ratio(case.name, name, reference, results) for reference in REFERENCES]
            notes = [f"raw fdatasync {result['raw_sync_us']:.0f} us"] if "raw_sync_us" in result else []
            notes += [f"RSS {result['rss_growth_mb']:+.0f} MB"] if "rss_growth_mb" in result else []
            notes += [_wrong(result).lstrip(", ")] if result["wrong"] else []
            rows.append(
                [
                    name,
                    f"{result['ops_per_s']:,.0f}",
                    f"{result['p50_ms']:.2f}",
                    f"{result['p99_ms']:.2f}",
                    f"{result['cpu_us_per_op']:.1f}",
                    f"{result['server_cpus']:.2f}",
                    f"{result['loader_cpu_us_per_op']:.1f}",
                    *["-" if each is None else f"{each:.2f}x" for each in ratios],
                    ", ".join(notes),
                ]
            )
        _table(rows)
    print("ratios are of rates (more is better), for the SSE readers of delivery times (less is better); CPU per op of catch-up is per MiB,")
    print("of SSE per event and reader; p50 of SSE is the median time until the last reader had the event\n")
    _table([["floor", "wanted", "found", ""], *[[v["what"], v["wanted"], v["found"] or "-", v["verdict"]] for v in verdicts]])


def _table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for first, *rest in rows:
        print("  ".join([first.ljust(widths[0]), *[text.rjust(width) for text, width in zip(rest, widths[1:], strict=False)], rest[-1]]).rstrip())
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.http_bench", description="Measure the stream service next to other servers.")
    parser.add_argument("--quick", action="store_true", help="2 s per case instead of 5")
    parser.add_argument("--seconds", type=float, help="per case")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write everything here")
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where data is written: the disk in question (%(default)s)")
    parser.add_argument("--server", action="append", choices=SERVERS, help="only this one; may be given again")
    parser.add_argument("--case", action="append", choices=[case.kind for case in CASES], help="only this kind; may be given again")
    options = parser.parse_args()
    seconds = options.seconds or (2.0 if options.quick else 5.0)
    options.dir.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(ValueError, OSError):  # 1,000 readers need more than the usual 1,024 descriptors, here and in every child
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    about = {**machine(str(options.dir)), "window": f"{seconds:g} s per case"}
    print("\n".join(f"{name.replace('_', ' '):<12}{value}" for name, value in about.items()), flush=True)
    results: Results = {}
    skipped: dict[str, str] = {}
    broken: dict[str, str] = {}
    started_s = time.monotonic()
    for name in options.server or SERVERS:
        try:
            measure(name, options.dir.resolve(), [case for case in CASES if not options.case or case.kind in options.case], seconds, results)
        except Skipped as missing:
            skipped[name] = str(missing)
            print(f"{name} skipped: {missing}", flush=True)
        except ClusterFailed as failed:
            broken[name] = str(failed)
            print(f"{name} FAILED: {failed}", flush=True)
    verdicts = judge(results)
    about |= {"took": f"{time.monotonic() - started_s:.0f} s", "load_at_end": f"{os.getloadavg()[0]:.1f}"}
    print()
    show(results, verdicts)
    print(f"took {about['took']}, load average {about['load_at_end']} at the end")
    if options.json:
        document = {"about": about, "results": results, "floors": verdicts, "skipped": skipped, "failed": broken}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if broken or any("failed" in result for servers in results.values() for result in servers.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
