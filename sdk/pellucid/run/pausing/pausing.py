"""Pauses of a run: what the loop asks about them, answered for a run that waits for somebody, or may have to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import SpanContext
from typing_extensions import override

from pellucid.approvals.checkpoint import Checkpoint, in_trace
from pellucid.approvals.external import ExternalRequest
from pellucid.run.outcomes import Paused
from pellucid.run.pausing.async_calls import cancel_running, stop_all
from pellucid.run.pausing.async_state import background_call
from pellucid.run.pausing.delivery import deliver, narrow
from pellucid.run.pausing.external_calls import cancel_all, requests_of
from pellucid.run.pausing.pause import pause, suspend, withdraw
from pellucid.run.pausing.state import Pending
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog


class Pausing(Pending):
    """Pauses of a run that waits for somebody, or may have to."""

    @property
    @override
    def awaits_results(self) -> bool:
        return bool(self.calls.external)

    @contextmanager
    @override
    def in_trace(self, run: Run) -> Iterator[Sequence[SpanContext]]:
        if self.resumption is None:
            yield self.links
            return
        with in_trace(self.resumption.checkpoint, is_nested=run.nesting.outer is not None) as links:
            yield [*links, *self.links]

    @override
    def deliver(self, run: Run, b: Boundary) -> bool:
        return deliver(run, b)

    @override
    async def next_results(self, run: Run, b: Boundary) -> bool:
        if self.calls.running:
            await self.calls.wait()
        return deliver(run, b)

    @override
    async def narrow(self, run: Run, b: Boundary, catalog: Catalog) -> Catalog:
        return await narrow(run, b, catalog)

    @override
    def owner(self, call_id: str) -> str:
        # A later message may use the id of a call in the background again.
        owner = background_call.get()
        return owner if owner in self.calls.by_id else call_id

    @override
    async def end(self, run: Run) -> Paused | None:
        await self.calls.all_ended()  # the checkpoint or the closing answer has their results
        if self.paused is None and self.calls.external:
            suspend(run, Paused((), (), {}, {}))
        return self.paused

    @override
    def in_result(self, run: Run, b: Boundary) -> dict[str, Any]:
        if (paused := self.paused) is None:
            return {}
        owed = [call.request for call in self.calls.external if call.request is not None]
        return {
            "approvals": tuple(waiting.request for waiting in paused.waiting),
            "external": (*owed, *paused.external),
            "checkpoint": pause(run, b, paused),
        }

    @override
    async def stop(self, run: Run) -> None:
        await stop_all(run)

    @override
    def conclude(self, run: Run, b: Boundary) -> None:
        cancel_running(run)  # those of an abandoned run; otherwise none are left
        if self.is_interrupted:
            return
        withdraw(run, b)
        if self.resumption is None or self.resumption.is_claimed:
            cancel_all(run)

    @override
    def hand_over(self, outer: Run) -> None:
        if (resumed := self.resumption) is not None and resumed.is_claimed:
            outer.pausing.release(resumed.checkpoint)
        to = pausing_of(outer)
        to.expect(self.requested)
        to.calls.nested.update({call.facts.result_id: call for call in self.calls.paused})
        to.calls.ended.update(self.calls.ended)

    @override
    def release(self, checkpoint: Checkpoint) -> None:
        self.decided(checkpoint.approvals)
        for request in checkpoint.all_external:
            self.calls.nested.pop(request.result_id, None)

    @override
    def requests(self) -> list[ExternalRequest]:
        return requests_of(self.calls)


def pausing_of(run: Run) -> Pausing:
    """Return the pauses of a run, which from now on can wait for somebody."""
    if not isinstance(run.pausing, Pausing):
        run.pausing = Pausing()
    return run.pausing
