"""Tail sampling by numbers: shares, bounds on memory, threads, forks, and options that cannot work."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import tracemalloc
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from pellucid import Agent, ConfigError, semconv
from pellucid.testing import FunctionModel
from pellucid_exporters import TailSampling
from pellucid_exporters.options import Otlp, Prometheus, Settings
from pellucid_exporters.pipeline import build
from pellucid_exporters.sampling.exemplars import MOST_DECISIONS, ExemplarBuffer, SamplingDecisions
from support.openmetrics import scrape
from support.otlp_receiver import otlp_receiver
from support.processes import PATIENCE
from support.sampling import emit_run, in_trace, sampled, start_run

TRACES = st.integers(min_value=1, max_value=2**128 - 1)
SHARES = st.floats(min_value=0.0, max_value=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": -0.1}, "between 0 and 1"),
        ({"share": 1.1}, "between 0 and 1"),
        ({"share": math.nan}, "between 0 and 1"),
        ({"share": True}, "between 0 and 1"),
        ({"share": "0.1"}, "between 0 and 1"),
        ({"slower_than": 0}, "more than 0 seconds"),
        ({"slower_than": math.inf}, "more than 0 seconds"),
        ({"costlier_than": -1.0}, "0 or more"),
        ({"more_tokens_than": -1}, "0 or more"),
        ({"max_spans": 0}, "at least 1"),
        ({"max_runs": 1.5}, "at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    """A wrong option raises ConfigError that names it."""
    (name,) = options
    with pytest.raises(ConfigError, match=rf"TailSampling\({name}=.*{message}"):
        TailSampling(**options)


@given(trace_id=TRACES, share=SHARES)
def test_the_share_is_that_of_trace_id_ratio_based(trace_id: int, share: float) -> None:
    """Services that sample by the standard ratio and services that sample here agree on each trace."""
    theirs = TraceIdRatioBased(share).should_sample(None, trace_id, "run").decision
    assert TailSampling(share=share).shares(trace_id) is (theirs is Decision.RECORD_AND_SAMPLE)


def test_the_share_is_exact_over_many_traces() -> None:
    """Of traces of evenly spread ids exactly the share arrives, and it is the standard ratio's choice."""
    share, many = 0.25, 2_000
    ids = [(number << 64) | (number * (2**64 // many)) for number in range(1, many + 1)]
    with sampled(TailSampling(share=share)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        for trace_id in ids:
            emit_run(tracer, semconv.COMPOSE, context=in_trace(trace_id))
        ratio = TraceIdRatioBased(share)
        chosen = [found for found in ids if ratio.should_sample(None, found, "").decision is Decision.RECORD_AND_SAMPLE]
        assert out.traces == {f"{trace_id:032x}" for trace_id in chosen}
        assert len(chosen) == pytest.approx(share * many, abs=1)
        assert len(out.names) == 2 * len(chosen)
        assert out.sampled_out == 2 * (many - len(chosen))
        assert out.decisions == {("share", False): len(chosen), ("dropped", False): many - len(chosen)}


def test_head_sampling_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that `OTEL_TRACES_SAMPLER` leaves out is not decided by the tail sampler."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with sampled(TailSampling(share=1.0)) as out:
        Agent("a", model=FunctionModel(lambda _: "fine"), telemetry=out.telemetry).run_sync("hi")
        assert out.names == []
        assert out.sampled_out == 0
        assert out.decisions == {}


def test_too_many_runs_decide_the_oldest_early() -> None:
    """A run above the limit of runs makes the sampler decide the oldest early, by what is known of it."""
    with sampled(TailSampling(share=0.0, max_runs=2)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        failing, quiet, third = (start_run(tracer, name) for name in ("failing", "quiet", "third"))
        assert out.decisions == {("dropped", True): 1}, "the oldest had nothing to show yet"
        tool = tracer.start_span(
            "tool", context=trace.set_span_in_context(quiet), attributes={semconv.OUTCOME: "failed", semconv.PHASE: "d"}
        )
        tool.end()
        fourth = start_run(tracer, "fourth")
        assert out.decisions == {("dropped", True): 1, ("failed", True): 1}
        for run in (failing, quiet, third, fourth):
            run.end()
        assert out.names == ["quiet", "tool"]
        assert out.sampled_out == 3
        assert out.decisions == {("dropped", True): 1, ("failed", True): 1, ("dropped", False): 2}


def test_too_many_spans_decide_the_oldest_run_that_holds_some() -> None:
    """Spans above the limit make the sampler decide the oldest run that holds some."""
    with sampled(TailSampling(share=0.0, max_spans=10, slower_than=1e-6)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        empty, full = start_run(tracer, "empty"), start_run(tracer, "full")
        for _ in range(11):
            tracer.start_span("GET", context=trace.set_span_in_context(full)).end()
        assert out.decisions == {("slow", True): 1}
        assert out.names == ["GET"] * 11
        full.end()
        assert out.names == [*["GET"] * 11, "full"]
        empty.end()
        assert out.decisions == {("slow", True): 1, ("slow", False): 1}


def test_spans_that_never_end_are_given_up() -> None:
    """Open spans above the limit make the sampler decide the run of the oldest early."""
    with sampled(TailSampling(share=0.0, max_spans=3)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        run = start_run(tracer)
        forgotten = [tracer.start_span("open", context=trace.set_span_in_context(run)) for _ in range(3)]
        assert out.decisions == {("dropped", True): 1}
        for span in forgotten:
            span.end()
        assert (out.names, out.sampled_out) == ([], 3)
        run.end()
        assert out.names == ["run"]


class OneSpanId(RandomIdGenerator):
    """Gives all spans the same id; traces have their own."""

    def generate_span_id(self) -> int:
        """Return the id that `in_trace` uses, too."""
        return 1


def test_spans_of_one_id_in_several_traces_are_told_apart() -> None:
    """Spans with one id in several traces belong to the runs of their own traces."""
    with sampled(TailSampling(share=0.0)) as out:
        out.telemetry.tracer_provider.id_generator = OneSpanId()
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        failing, quiet = (start_run(tracer, name, in_trace(number)) for number, name in ((1, "failing"), (2, "quiet")))
        tracer.start_span("no run", context=in_trace(3)).end()
        failing.set_attribute(semconv.OUTCOME, semconv.FAILED)
        failing.end()
        quiet.end()
        assert out.names == ["failing", "no run"]
        assert out.decisions == {("failed", False): 1, ("dropped", False): 1}


def _grown(tracer: trace.Tracer, runs: int) -> int:
    """Return the bytes that are in use more after this many runs."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(runs):
        emit_run(tracer, semconv.DISCOVERY, semconv.COMPOSE, semconv.INFERENCE)
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_memory_stays_bounded_over_thousands_of_runs() -> None:
    """Dropped runs leave nothing but their trace ids, whose number is bounded."""
    with sampled(TailSampling(share=0.0)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        _grown(tracer, 500)
        tracemalloc.start()
        try:
            grown = _grown(tracer, 3_000)
        finally:
            tracemalloc.stop()
        assert out.names == []
        assert out.decisions == {("dropped", False): 3_500}
        assert grown < 3_000 * 200, f"{grown / 3_000:.0f} bytes stay for each run"


def test_the_memory_of_decisions_is_bounded() -> None:
    """The oldest decisions are forgotten, and a forgotten trace counts as one that was never sampled."""
    fates = SamplingDecisions()
    for trace_id in range(1, MOST_DECISIONS + 11):
        fates.begin(trace_id)
        assert fates.is_undecided(trace_id)
        fates.decide(trace_id, kept=False)
    assert [fates.is_dropped(trace_id) for trace_id in (10, 11, MOST_DECISIONS + 10)] == [False, True, True]
    assert not fates.is_undecided(MOST_DECISIONS + 10)


def test_a_trace_of_several_runs_is_dropped_only_if_all_are() -> None:
    """A trace with several runs is dropped only if all of them are."""
    fates = SamplingDecisions()
    for kept in (False, True, False):
        fates.begin(7)
        fates.decide(7, kept=kept)
    assert not fates.is_dropped(7)


class _Exemplar:
    def __init__(self, trace_id: int) -> None:
        self.trace_id = trace_id


@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["keep", "drop", "ask"])), max_size=60))
@settings(max_examples=200, deadline=None)
def test_exemplars_wait_for_the_decision_on_their_runs(steps: list[tuple[int, str]]) -> None:
    """An exemplar of a kept run is released once, and one of an undecided or dropped run never."""
    fates = SamplingDecisions()
    withheld = ExemplarBuffer(fates.is_dropped, fates.is_undecided)
    fate: dict[int, str] = {}
    released: list[int] = []
    for trace_id, step in steps:
        fresh = []
        if trace_id not in fate:
            fate[trace_id] = "undecided"
            fates.begin(trace_id)
            fresh = [_Exemplar(trace_id)]
        elif step != "ask" and fate[trace_id] == "undecided":
            fate[trace_id] = step
            fates.decide(trace_id, kept=step == "keep")
        out = [exemplar.trace_id for exemplar in withheld.release("series", fresh)]
        assert {fate[found] for found in out} <= {"keep"}
        released += out
    assert sorted(released) == sorted(found for found, what in fate.items() if what == "keep")


def test_threads_share_one_sampler() -> None:
    """Each span of runs in many threads arrives or is counted, once."""
    with sampled(TailSampling(share=0.5, max_runs=3, max_spans=8)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        faults: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(200):
                    emit_run(tracer, semconv.COMPOSE, semconv.INFERENCE)
            except BaseException as error:  # noqa: BLE001  (asserted on below)
                faults.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert faults == []
        assert len(out.names) + out.sampled_out == 6 * 200 * 3
        assert sum(out.decisions.values()) == 6 * 200


def test_spans_that_end_while_garbage_is_collected_do_not_hang() -> None:
    """Spans that a garbage collection ends, also inside of the sampler, do not hang."""

    class Forgotten:
        def __init__(self, span: trace.Span) -> None:
            self.span = span
            self.cycle = self

        def __del__(self) -> None:
            self.span.end()

    before = gc.get_threshold()
    with sampled(TailSampling(share=0.0, max_runs=4, max_spans=16)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        gc.freeze()  # what is there already need not be looked at in each of the collections
        try:
            for number in range(300):
                run = start_run(tracer)
                gc.collect()
                gc.set_threshold(number // 4 + 1)  # each time a little later, so that some are inside of the sampler
                Forgotten(tracer.start_span("forgotten", context=trace.set_span_in_context(run)))
                Forgotten(run)
                del run
                start_run(tracer).end()
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()
        gc.collect()
        gc.freeze()  # as it was: see tests/conftest.py
        assert len(out.names) + out.sampled_out == 900
        assert sum(out.decisions.values()) == 600


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_starts_empty() -> None:
    """A forked child starts empty: what waits is its parent's to decide."""
    script = """
        import os, sys
        from opentelemetry import trace
        from pellucid import semconv
        from pellucid_exporters import TailSampling, configure

        telemetry = configure("shop", otlp=sys.argv[1], tail_sampling=TailSampling(share=0.0))
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)

        def start(name, **more):
            return tracer.start_span(name, attributes={semconv.PHASE: semconv.RUN}, **more)

        outer = start("parent")
        tracer.start_span("before", context=trace.set_span_in_context(outer)).end()
        child = os.fork()
        run = start("child dropped" if child == 0 else "parent dropped")
        run.end()
        if child == 0:
            tracer.start_span("inside", context=trace.set_span_in_context(outer)).end()
            run = start("child kept")
            run.set_attribute(semconv.OUTCOME, "failed")
            run.end()
            assert telemetry.flush(10)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        outer.set_attribute(semconv.OUTCOME, "failed")
        outer.end()
        assert telemetry.flush(10)
    """
    with otlp_receiver("http/protobuf") as receiver:
        finished = subprocess.run(
            [sys.executable, "-c", dedent(script), receiver.endpoint],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        assert sorted(span.name for span in receiver.spans) == ["before", "child kept", "inside", "parent"]


def test_without_an_exporter_of_spans_nothing_is_sampled() -> None:
    """Nothing is sampled or counted without an exporter of spans, and exemplars are shown."""
    settings_ = Settings(service_name="shop", prometheus=Prometheus(port=0), tail_sampling=TailSampling(share=0.0))
    telemetry = build(settings_)
    try:
        Agent("a", model=FunctionModel(lambda _: "fine"), telemetry=telemetry).run_sync("hi")
        families = scrape(telemetry.prometheus_url)
        assert "pellucid_telemetry_sampled_out" not in families
        assert any(sample.exemplar for sample in families["gen_ai_invoke_agent_duration_seconds"].samples)
    finally:
        telemetry.shutdown()


def test_the_same_rules_again_are_the_same_configuration() -> None:
    """Options with the same rules are equal, so that `configure()` is idempotent with rules."""
    one, same, other = (
        Settings(service_name="shop", otlp=Otlp(), tail_sampling=TailSampling(share=share)) for share in (0.1, 0.1, 0.2)
    )
    assert one == same
    assert one != other
