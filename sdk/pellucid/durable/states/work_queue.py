"""The interface between workers and a queue that distributes runs, such as `NATSQueue`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal, Protocol, TypeAlias

from pellucid.durable.store import RunStore

DeadReason: TypeAlias = Literal["given_up", "invalid", "undeliverable"]
"""`given_up`: the store has failed the run, as its leases expired too often; `invalid`: the message names no run;
`undeliverable`: it was delivered too often."""

GIVEN_UP: Final[DeadReason] = "given_up"


class Delivery(Protocol):
    """A message that a run is due, which this process has received and others do not see meanwhile.

    It may be repeated, late or wrong: only a claim of the store gives the run to a worker. None of the methods waits,
    and each delivery ends with one of them. A delivery whose process ends is delivered again to another one.

    Attributes:
        run_id: Id of the run.
        agent: Name of its agent.
    """

    @property
    def run_id(self) -> str:
        """Id of the run."""
        ...

    @property
    def agent(self) -> str:
        """Name of its agent."""
        ...

    def acknowledge(self) -> None:
        """Remove the message: its pass has ended, or there is nothing to do."""
        ...

    def give_back(self) -> None:
        """Let another process receive the message."""
        ...

    def bury(self, reason: DeadReason) -> None:
        """Remove the message, and keep it where people look for failed ones."""
        ...


class WorkQueue(Protocol):
    """A queue of runs that are due. It is fast, and may lose and repeat messages: the store has the truth."""

    def attach(self, store: RunStore) -> None:
        """Send messages of what this store commits from now on.

        Raises:
            ConfigError: the queue belongs to another store.
        """
        ...

    async def receive(self, agents: Collection[str], timeout: float) -> Delivery | None:  # noqa: ASYNC109
        """Wait for a message about a run of one of the agents; return None after `timeout` seconds.

        A queue that is not available raises nothing: it has no messages.
        """
        ...


class Relay(Protocol):
    """Carries pieces of answers from workers to readers in other processes, and the other way which runs are read.

    Messages may be lost. What a relay cannot send it drops; it raises nothing. A queue that has one has it as `relay`.
    """

    def open(self, announced: Callable[[str], None], received: Callable[[str], None]) -> None:
        """Call functions with the messages of other processes from now on, from any thread."""
        ...

    async def follow(self, run_id: str) -> None:
        """Receive the pieces of a run from now on; may be called again."""
        ...

    def leave(self, run_id: str) -> None:
        """Stop receiving the pieces of a run."""
        ...

    async def announce(self, texts: Sequence[str]) -> None:
        """Send messages about runs that are read to all processes."""
        ...

    async def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send pieces: ids of runs, and texts of at most 7,900 bytes."""
        ...
