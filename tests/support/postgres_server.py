"""A real PostgreSQL in a temporary folder, reached through a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OPTIONS: Final = ("max_connections=200", "listen_addresses=")
"""Nothing listens on the network, unless an address is given."""


class PostgresServer:
    """A server that runs. Attributes: url: its URL, without a password; folder: where its socket is; port: its port."""

    def __init__(self, folder: Path, account: dict[str, Any], port: int, *options: str) -> None:
        self.url = f"postgresql://pellucid@/postgres?host={folder}&port={port}"
        self.folder = folder
        self.port = port
        self._account = account
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Id of its main process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        options = [word for option in (*_OPTIONS, *self._options) for word in ("-c", option)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program("postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder), *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._account,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"PostgreSQL did not start: {error}\n{(self.folder / 'log').read_text()}")
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """End all connections and stop."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def kill(self) -> None:
        """Stop without a checkpoint, as after a crash."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL; without it the test is skipped, or fails where CI says so."""
    paths = [str(path.parent) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(reversed(paths)))
    if path is None:
        complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
        complain(f"the program {name!r} is not installed (Debian: apt-get install postgresql)")
    return path


@contextmanager
def postgres_server(*, fsync: bool = False, addresses: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """Run PostgreSQL until the end of the block; as another user if this one is root, which it refuses.

    Args:
        fsync: Whether commits survive a loss of power.
        addresses: Addresses to listen on, at a free port, which is the socket's too; whoever reaches them is let in.
    """
    initdb = program("initdb")
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    account: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        subprocess.run(
            [initdb, "-D", str(folder / "data"), "-U", "pellucid", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
            check=True,
            capture_output=True,
            cwd=folder,
            **account,
        )
        options = [f"fsync={'on' if fsync else 'off'}"]
        port = 5432
        if addresses:
            port = free_port()
            options += [f"listen_addresses={','.join(addresses)}", f"port={port}"]
            with (folder / "data" / "pg_hba.conf").open("a") as file:
                file.write("host all all all trust\n")
        server = PostgresServer(folder, account, port, *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
