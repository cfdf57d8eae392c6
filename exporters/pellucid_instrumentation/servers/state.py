"""Sessions and requests of servers that have not ended, behind the observable gauges."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from anyio.lowlevel import EventLoopToken, current_token
from opentelemetry.metrics import Meter

from pellucid.concurrency.forks import in_child
from pellucid.concurrency.tasks import is_running
from pellucid.semconv import MCP_METHOD_NAME, MCP_SERVER_NAME, TOOL_NAME, Metric
from pellucid.semconv import servers as semconv
from pellucid.telemetry.metrics import Instruments, Observe, create, observe

Subject: TypeAlias = tuple[str, str | None]
"""Method of a request, and the tool that it calls."""

_PACKAGE: Final = "pellucid_instrumentation.servers"


class _Request(NamedTuple):
    start: float
    subject: Subject
    loop: EventLoopToken


class ServerState:
    """State of the servers of one name. Thread-safe.

    Attributes:
        objective: Seconds that a request should take.
    """

    def __init__(self) -> None:
        self.objective: float | None = None
        self._subjects: set[Subject] = set()
        self._renew()
        in_child(self, ServerState._renew)

    def _renew(self) -> None:
        """Forget what is open, such as that of a parent process."""
        self._lock = threading.RLock()  # garbage collection here may end a request, which re-enters
        self._requests: dict[object, _Request] = {}
        self._sessions: dict[object, EventLoopToken] = {}

    def started(self, key: object, subject: Subject) -> None:
        """Note a request that the server works on."""
        request = _Request(time.monotonic(), subject, current_token())
        with self._lock:
            self._subjects.add(subject)
            self._requests[key] = request

    def ended(self, key: object) -> None:
        """Note the end of a request."""
        with self._lock:
            self._requests.pop(key, None)

    def opened(self, key: object) -> None:
        """Note a session that is open."""
        with self._lock:
            self._sessions[key] = current_token()

    def closed(self, key: object) -> None:
        """Note the end of a session."""
        with self._lock:
            self._sessions.pop(key, None)

    @property
    def sessions(self) -> int:
        """Number of open sessions; those of event loops that were stopped are none."""
        with self._lock:
            loops = list(self._sessions.values())
        return sum(1 for loop in loops if is_running(loop))

    @property
    def requests(self) -> list[_Request]:
        """Requests in flight."""
        with self._lock:
            found = list(self._requests.values())
        return [request for request in found if is_running(request.loop)]

    def ages(self) -> dict[Subject, float]:
        """Return the age in seconds of the oldest request of each subject; 0 if there is none."""
        with self._lock:
            oldest = dict.fromkeys(self._subjects, 0.0)
        now = time.monotonic()
        for request in self.requests:
            oldest[request.subject] = max(oldest.get(request.subject, 0.0), now - request.start)
        return oldest


class _States:
    """States by the names of servers, as long as one of that name is instrumented."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_name: WeakValueDictionary[str, ServerState] = WeakValueDictionary()
        in_child(self, _States._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def of(self, name: str) -> ServerState:
        """Return the state of the servers of a name."""
        with self._lock:
            state = self._by_name.get(name)
            if state is None:
                state = self._by_name[name] = ServerState()
            return state

    def items(self) -> list[tuple[str, ServerState]]:
        """Return all names and states."""
        with self._lock:
            return list(self._by_name.items())


STATES: Final = _States()


class ServerInstruments:
    """Instruments of `semconv.servers`, of one meter provider.

    Attributes:
        duration: Histogram of requests.
        sessions: Histogram of sessions.
        late: Counter of requests that were over the objective.
    """

    def __init__(self, meter: Meter) -> None:
        self.duration = create(meter, semconv.SERVER_OPERATION_DURATION)
        self.sessions = create(meter, semconv.SERVER_SESSION_DURATION)
        self.late = create(meter, semconv.SERVER_OVER_OBJECTIVE)
        for metric, read in _OBSERVED:
            observe(meter, metric, read)


_lock: Final = threading.Lock()


def instruments_of(instruments: Instruments) -> ServerInstruments:
    """Return the instruments beside those of agents, created at the first call."""
    found: ServerInstruments | None = instruments.more.get(_PACKAGE)
    if found is None:
        with _lock:
            found = instruments.more.get(_PACKAGE)
            if found is None:
                found = instruments.more[_PACKAGE] = ServerInstruments(instruments.meter)
    return found


_Readings: TypeAlias = Iterator[tuple[dict[str, str], float]]


def _sessions() -> _Readings:
    for name, state in STATES.items():
        yield {MCP_SERVER_NAME: name}, state.sessions


def _inflight() -> _Readings:
    for name, state in STATES.items():
        yield {MCP_SERVER_NAME: name}, len(state.requests)


def _ages() -> _Readings:
    for name, state in STATES.items():
        for (method, tool), age in state.ages().items():
            labels = {MCP_SERVER_NAME: name, MCP_METHOD_NAME: method}
            yield (labels if tool is None else labels | {TOOL_NAME: tool}), age


def _objectives() -> _Readings:
    for name, state in STATES.items():
        if state.objective is not None:
            yield {MCP_SERVER_NAME: name}, state.objective


_OBSERVED: Final[tuple[tuple[Metric, Observe], ...]] = (
    (semconv.SERVER_SESSIONS, _sessions),
    (semconv.SERVER_INFLIGHT, _inflight),
    (semconv.SERVER_INFLIGHT_AGE, _ages),
    (semconv.SERVER_OBJECTIVE, _objectives),
)
