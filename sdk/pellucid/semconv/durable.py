"""The instruments of durable runs, their queue and their server; a program without them does not load them."""

from __future__ import annotations

from functools import partial
from typing import Final

from pellucid.semconv.metrics import Metric
from pellucid.semconv.names import (
    AGENT_NAME,
    ASYNC_STATUS,
    DURABLE_CALLBACK,
    DURABLE_KIND,
    DURABLE_PASS,
    DURABLE_SETTLEMENT,
    DURABLE_SOURCE,
    DURABLE_STATUS,
    ERROR_TYPE,
    HTTP_REQUEST_METHOD,
    HTTP_RESPONSE_STATUS_CODE,
    HTTP_ROUTE,
    QUEUE_MESSAGE,
    QUEUE_REASON,
    TOOL_NAME,
    URL_SCHEME,
)

_duration: Final = partial(Metric, "histogram", "s")
_counter: Final = partial(Metric, "counter")
_updown: Final = partial(Metric, "updown")
_gauge: Final = partial(Metric, "gauge")

AGENT_DIGEST: Final = "pellucid.agent.digest"
AGENT_PREVIOUS_DIGEST: Final = "pellucid.agent.previous_digest"

DURABLE_SETTLEMENTS: Final = _counter(
    "{settlement}",
    "pellucid.durable.settlements",
    "Results and decisions that the store of durable runs received for calls, and calls that it expired.",
    (TOOL_NAME, DURABLE_KIND, DURABLE_SETTLEMENT, ASYNC_STATUS),
)
DURABLE_DUE_WAIT: Final = _duration(
    "pellucid.durable.due.wait",
    "Time for which a due run in the store had waited when a worker claimed it.",
    (AGENT_NAME,),
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0),
)
DURABLE_PASSES: Final = _counter(
    "{pass}", "pellucid.durable.passes", "Passes of durable runs, by how they ended.", (AGENT_NAME, DURABLE_PASS)
)
DURABLE_CLAIMS: Final = _counter(
    "{run}",
    "pellucid.durable.claims",
    "Durable runs that a worker has claimed, by how it found them.",
    (AGENT_NAME, DURABLE_SOURCE),
)
DURABLE_RECOVERIES: Final = _counter(
    "{run}",
    "pellucid.durable.recoveries",
    "Durable runs that a worker continued after the lease of another had expired.",
    (AGENT_NAME,),
)
DURABLE_RETRIES: Final = _counter(
    "{pass}",
    "pellucid.durable.retries",
    "Passes of durable runs that failed, and after which the run goes on.",
    (AGENT_NAME, ERROR_TYPE),
)
DURABLE_PURGED: Final = _counter(
    "{run}",
    "pellucid.durable.purged",
    "Durable runs that a worker has deleted, some time after they had ended.",
    (DURABLE_STATUS,),
)
DURABLE_DISPATCHES_SKIPPED: Final = _counter(
    "{dispatch}",
    "pellucid.durable.dispatches.skipped",
    "Dispatches of external calls that a continued run did not repeat, because they had been made.",
    (TOOL_NAME,),
)
DURABLE_SLOTS: Final = _updown(
    "{run}", "pellucid.durable.worker.slots", "Durable runs that the workers of this process can continue at once."
)
DURABLE_SLOTS_USED: Final = _updown(
    "{run}", "pellucid.durable.worker.slots.used", "Durable runs that the workers of this process continue now."
)
DURABLE_RUNS: Final = _gauge(
    "{run}", "pellucid.durable.runs", "Runs in the store that have not ended.", (DURABLE_STATUS,)
)
DURABLE_DUE_AGE: Final = _gauge(
    "s",
    "pellucid.durable.due.age",
    "Time for which the oldest due run in the store has waited for a worker; 0 when none is due.",
    (AGENT_NAME,),
)
DURABLE_RETRYING_AGE: Final = _gauge(
    "s",
    "pellucid.durable.retrying.age",
    "Time since the first failure in a row of the run that has been retrying for longest; 0 when none is.",
    (AGENT_NAME,),
)
DURABLE_PENDING: Final = _gauge(
    "{call}", "pellucid.durable.pending", "Calls in the store without a result.", (TOOL_NAME, DURABLE_KIND)
)
DURABLE_PENDING_AGE: Final = _gauge(
    "s",
    "pellucid.durable.pending.age",
    "Age of the oldest call in the store without a result.",
    (TOOL_NAME, DURABLE_KIND),
)
DURABLE_DEADLINE_USED: Final = _gauge(
    "1",
    "pellucid.durable.pending.deadline_used",
    "Largest share of its time until the deadline that a call without a result has used.",
    (TOOL_NAME, DURABLE_KIND),
)
QUEUE_PUBLISHED: Final = _counter(
    "{message}", "pellucid.queue.published", "Messages that the queue of durable runs has stored.", (QUEUE_MESSAGE,)
)
QUEUE_DROPPED: Final = _counter(
    "{message}",
    "pellucid.queue.dropped",
    "Messages that were not sent to the queue of durable runs; sweeps of the store make up for them.",
    (QUEUE_MESSAGE, QUEUE_REASON),
)
QUEUE_REDELIVERED: Final = _counter(
    "{message}",
    "pellucid.queue.redelivered",
    "Messages that a worker received after another one had not acknowledged them.",
    (AGENT_NAME,),
)
QUEUE_DEAD_LETTERED: Final = _counter(
    "{message}",
    "pellucid.queue.dead_lettered",
    "Messages that were moved to the dead letters of the queue of durable runs.",
    (AGENT_NAME, QUEUE_REASON),
)
DURABLE_CALLBACKS: Final = _counter(
    "{attempt}",
    "pellucid.durable.callbacks",
    "Attempts to deliver the state of a durable run to its callback URL.",
    (DURABLE_CALLBACK,),
)
DURABLE_CALLBACK_AGE: Final = _gauge(
    "s",
    "pellucid.durable.callback.age",
    "Time for which the oldest state in the store has waited for its delivery to a callback URL; 0 when none does.",
    (),
)
HTTP_SERVER_DURATION: Final = _duration(
    "http.server.request.duration",
    "Duration of a request to the server of durable runs.",
    (HTTP_REQUEST_METHOD, HTTP_ROUTE, HTTP_RESPONSE_STATUS_CODE, URL_SCHEME, ERROR_TYPE),
    (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)

DURABLE_METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Instruments of durable runs, in the order of this file."""
