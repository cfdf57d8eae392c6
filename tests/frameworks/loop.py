"""An agent that runs again and again, instrumented, with a page of metrics; `python loop.py PROGRAM URL`.

It prints the URL of the page. It runs below every Python that a framework is tried with, and ends with its input.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import runpy
import sys
import threading
import time
from contextlib import suppress

from pellucid_exporters import Prometheus, configure
from pellucid_instrumentation import ObservedHub, instrument

PAUSE = 0.05


def run_again(program: str, url: str) -> None:
    """Run the `main` of a program until the process ends."""
    main = runpy.run_path(program)["main"]
    while True:
        with suppress(Exception):  # the server hangs, or has been stopped
            done = main(url)
            if inspect.iscoroutine(done):
                asyncio.run(done)
        time.sleep(PAUSE)


if __name__ == "__main__":
    telemetry = configure("loop", prometheus=Prometheus(port=0))
    instrument({"*127.0.0.1*": ObservedHub("catalogue", objective=0.2), "catalogue": ObservedHub(objective=0.2)})
    print(telemetry.prometheus_url, flush=True)
    sys.stdout = sys.stderr  # what the program prints
    threading.Thread(target=run_again, args=sys.argv[1:3], daemon=True).start()
    sys.stdin.read()
    os._exit(0)
