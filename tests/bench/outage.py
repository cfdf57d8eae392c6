"""Cost of an outage of the collector: the longest of two hundred runs, with and without an outage, in turns.

Run it with `python -m bench.outage` in `tests`. Numbers are printed, never asserted.
"""

from __future__ import annotations

import logging
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread

from pellucid_exporters import configure
from pellucid_exporters.options import Otlp
from support.burst import RUNS, burst
from support.rotel_agent import agent_before

OUTAGE = 10.0
ROUNDS = 3


async def measure(folder: Path, *, outage: bool) -> list[float]:
    """Return how long each run took, in seconds."""
    with agent_before(None, folder) as agent:
        telemetry = configure("burst", otlp=Otlp(endpoint=agent.endpoint), set_global=False)

        async with anyio.create_task_group() as tasks:
            if outage:
                tasks.start_soon(agent.pause, 2, OUTAGE)
            taken = await burst(telemetry)
        await anyio.to_thread.run_sync(telemetry.shutdown, 10.0)
    return taken


def main() -> None:
    """Print the longest and the median run of each round."""
    logging.disable(logging.CRITICAL)
    print(f"{RUNS} runs at once; the collector away for {OUTAGE:g} s of them\n\n{'':16} {'median':>8} {'longest':>8}")
    longest: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for outage in (False, True):
            with TemporaryDirectory() as folder:
                taken = anyio.run(lambda: measure(Path(folder), outage=outage))  # noqa: B023  (called at once)
            longest[outage].append(max(taken))
            what = "with an outage" if outage else "without"
            print(f"{what:16} {statistics.median(taken):8.2f} {max(taken):8.2f}")
    ratio = statistics.median(longest[True]) / statistics.median(longest[False])
    print(f"\nlongest run with an outage, of that without: {ratio:.3f} (medians of {ROUNDS} rounds)")


if __name__ == "__main__":
    main()
