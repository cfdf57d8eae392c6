"""gunicorn with uvicorn workers for the application in `fastapi_agent.py`: `gunicorn --config gunicorn_conf.py`.

Needs `pip install 'pellucid[server]' fastapi gunicorn uvicorn-worker`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2

wsgi_app = "fastapi_agent:app"
worker_class = "uvicorn_worker.UvicornWorker"
workers = 2
preload_app = True  # imported once; the lifespan, which configures telemetry, runs in each worker after the fork
max_requests = 1000  # then a new worker takes its place
max_requests_jitter = 100
graceful_timeout = 30
control_socket_disable = True


def main() -> None:
    """Start gunicorn, ask a question, and stop it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    here = Path(__file__)
    command = [sys.executable, "-m", "gunicorn", "--config", here.name, "--bind", address]
    with subprocess.Popen(command, cwd=here.parent) as server:  # noqa: S603
        try:
            print(ask(f"http://{address}/answers", "Will it rain in Bergen?"))
        finally:
            server.terminate()


def ask(url: str, question: str) -> str:
    """Ask as soon as a worker listens, and return the answer."""
    for _ in range(600):
        try:
            return str(httpx2.post(url, json={"text": question}, timeout=60).json()["text"])
        except httpx2.TransportError:
            time.sleep(0.1)
    raise TimeoutError(url)


if __name__ == "__main__":
    main()
