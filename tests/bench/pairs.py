"""Cost of an iteration beside another checkout: processor time in interleaved pairs, with an interval.

`python -m bench.pairs OTHER` in `tests`, where OTHER is the root of the other checkout, such as a `git worktree`.

Each tree runs in a process of its own, with the same work as `make bench`: six runs of 21 iterations, exported by OTLP,
and a flush. The processes take turns, in changing order, so that a busy machine slows both, and are started anew for
each round: one may be faster than another of the same tree for as long as it lives, by 2 %. The ratio is the median of
those of the rounds, each the median of its pairs; its interval contains 95 % of the medians of resampled rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

import anyio

from bench.iteration import INTERVAL, ours, sample_of
from bench.sink import sink
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp

HERE: Final = Path(__file__).parents[2]
PAIRS: Final = 8
"""Pairs of a round."""

RESAMPLED: Final = 2_000
CONFIDENCE: Final = 0.95

Pair: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Samples of the other tree and of this one: processor time of the loop's thread, and of all."""


async def measure(endpoint: str, *, asks_hub: bool) -> None:
    """Print the processor time of an iteration in µs, of the loop's thread and of all, for each line of input."""
    telemetry = configure("bench", otlp=Otlp(endpoint=endpoint, metric_interval=INTERVAL), set_global=False)
    variant = ours(10, telemetry, lambda: telemetry.flush(60.0), asks_hub=asks_hub)
    await variant.run()
    while sys.stdin.readline():
        print(*await sample_of(variant), flush=True)
    telemetry.shutdown(10.0)


class Process:
    """A process that measures one tree."""

    def __init__(self, tree: Path, *arguments: str) -> None:
        # This package measures both; the trees differ in what it imports.
        path = os.pathsep.join(str(part) for part in (tree / "sdk", tree / "exporters", HERE / "tests"))
        command = [sys.executable, "-m", "bench.pairs", *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def sample(self) -> tuple[float, ...]:
        """Return what one sample took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return tuple(map(float, self._process.stdout.readline().split()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60.0)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the bounds of the median."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    outside = round(RESAMPLED * (1 - CONFIDENCE) / 2)
    return medians[outside], medians[-outside - 1]


def compare(other: Path, pairs: int, *arguments: str) -> None:
    """Measure and print."""
    rounds: list[list[Pair]] = []
    with sink() as endpoint:
        for number in range(max(1, pairs // PAIRS)):
            trees = (other, HERE) if number % 2 else (HERE, other)
            with ExitStack() as stack:
                started = {tree: Process(tree, *arguments, "--endpoint", endpoint) for tree in trees}
                for process in started.values():
                    stack.callback(process.close)
                    process.sample()  # the first one only warms up
                rounds.append([_pair(started[other], started[HERE], is_reversed=bool(n % 2)) for n in range(PAIRS)])
    for index, name in enumerate(("loop's thread", "all threads")):
        ratios = [statistics.median(here[index] / there[index] for there, here in taken) for taken in rounds]
        low, high = interval(ratios)
        there, here = (statistics.median(pair[place][index] for taken in rounds for pair in taken) for place in (0, 1))
        ratio = statistics.median(ratios)
        print(f"{name:14} {there:6.0f} µs there, {here:6.0f} here, ratio {ratio:.3f} [{low:.3f}, {high:.3f}]")


def _pair(there: Process, here: Process, *, is_reversed: bool) -> Pair:
    """Return one sample of each, taken in either order."""
    if is_reversed:
        second, first = here.sample(), there.sample()
        return first, second
    return there.sample(), here.sample()


def main() -> None:
    """Compare two trees, or measure one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="root of the other checkout")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--hub", action="store_true", help="ask a hub in each iteration")
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.endpoint is not None:
        anyio.run(lambda: measure(options.endpoint, asks_hub=options.hub))
    elif options.other is not None:
        compare(options.other.resolve(), options.pairs, *(["--hub"] if options.hub else []))
    else:
        parser.error("give the root of another checkout")


if __name__ == "__main__":
    main()
