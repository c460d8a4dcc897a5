"""`make sim`: many seeds on all cores, or one seed with a readable trace. Before us: swarm.py draws a run, world.py plays it. After us: a table, and
an exit code.

python -m tests.sim.run --seeds 2000 [--from 0] [--jobs 2] [--twice 0.02]
python -m tests.sim.run --seed 7"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from typing import Any, NamedTuple

from tests.sim.swarm import SECOND, draw
from tests.sim.world import Violation, World


class Outcome(NamedTuple):
    seed: int
    problem: str
    digest: int
    sim_us: int
    events: int
    acked: int
    ops: int
    checks: int
    faults: Counter[str]
    lost: int
    duplicated: int
    cpu_s: float


def play(seed: int, trace: Any = None) -> Outcome:
    """One run. Whatever goes wrong is in `problem`."""
    started = time.process_time()
    world = World(draw(seed), trace)
    problem = ""
    try:
        world.run()
    except Violation as violation:
        problem = str(violation)
    except Exception:
        problem = f"seed {seed}, at {world.now_us / SECOND:.3f} s: {traceback.format_exc()}"
    acked = sum(client.acked for client in world.clients)
    return Outcome(
        seed,
        problem,
        world.digest,
        world.now_us,
        world.events,
        acked,
        len(world.history.ops) + world.front_door.judge.judged,
        world.invariants.checks,
        world.faults.count,
        world.net.lost,
        world.net.duplicated,
        time.process_time() - started,
    )


def _work(job: tuple[int, bool]) -> Outcome:
    """In a worker: collect at a fixed place, so that garbage never depends on what else this process did."""
    seed, twice = job
    gc.disable()
    outcome = play(seed)
    if twice and not outcome.problem:
        again = play(seed)
        if again.digest != outcome.digest:
            outcome = outcome._replace(problem=f"seed {seed} is not deterministic: digests {outcome.digest:x} and {again.digest:x}")
    gc.collect()
    return outcome


def run_seeds(first: int, count: int, jobs: int, twice_every: int, stop_early: bool = True) -> list[Outcome]:
    outcomes: list[Outcome] = []
    work = [(seed, twice_every > 0 and seed % twice_every == 0) for seed in range(first, first + count)]
    show = sys.stderr.isatty()
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        for outcome in pool.imap_unordered(_work, work, chunksize=4):
            outcomes.append(outcome)
            if show:
                print(f"\r{len(outcomes)}/{count} seeds", end="", file=sys.stderr)
            if outcome.problem:
                print(f"\nFAILED {outcome.problem}\n  replay: make sim SEED={outcome.seed}", file=sys.stderr)
                if stop_early and sum(bool(one.problem) for one in outcomes) >= 5:
                    pool.terminate()
                    break
    if show:
        print("\r", end="", file=sys.stderr)
    return outcomes


def report(outcomes: list[Outcome], wall_s: float) -> None:
    count = len(outcomes)
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    events = sum(outcome.events for outcome in outcomes)
    sim_s = sum(outcome.sim_us for outcome in outcomes) / SECOND
    acked = sum(outcome.acked for outcome in outcomes)
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    print(f"seeds                    {count}")
    print(f"simulated hours          {sim_s / 3600:.2f}   ({sim_s / count:.1f} s per seed)")
    print(f"operations acknowledged  {acked}   ({acked / count:.0f} per seed)")
    print(f"operations checked       {sum(outcome.ops for outcome in outcomes)}")
    print(f"invariant checks         {sum(outcome.checks for outcome in outcomes)}")
    print(f"faults                   {faults.total()}   ({faults.total() / count:.1f} per seed)")
    for name, number in sorted(faults.items()):
        print(f"  {name:24}{number}")
    print(f"  {'packets lost':24}{sum(outcome.lost for outcome in outcomes)}")
    print(f"  {'packets duplicated':24}{sum(outcome.duplicated for outcome in outcomes)}")
    print(f"events                   {events}   ({events / cpu_s:,.0f} per CPU-second, {sim_s / cpu_s:.0f}x real time)")
    print(f"CPU seconds              {cpu_s:.1f}   ({cpu_s / count:.2f} per seed), {wall_s:.1f} s by the clock")
    print(f"{count - failed} passed, {failed} failed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default 200)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="replay this one seed and print what happens")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--twice-every", type=int, default=25, help="play every n-th seed twice and compare (default 25, 0: never)")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        if options.seed is not None:
            print(draw(options.seed))
            outcome = play(options.seed, print)
            report([outcome], time.monotonic() - started)
            print(outcome.problem or "no violation")
            return 1 if outcome.problem else 0
        outcomes = run_seeds(options.first, options.seeds, options.jobs, options.twice_every)
        report(outcomes, time.monotonic() - started)
        return 1 if any(outcome.problem for outcome in outcomes) else 0
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
