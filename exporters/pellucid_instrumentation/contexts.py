"""Blocks of instrumented code that run in the context of a span."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from pellucid_instrumentation.faults import guarded


@contextmanager
def attached(
    context: Context, failed: Callable[[BaseException], None], *variables: tuple[ContextVar[Any], Any]
) -> Iterator[None]:
    """Run a block in a context and report the error that ends it.

    A coroutine that is collected ends in another context, where nothing can be reset.

    Args:
        context: OpenTelemetry context of the block.
        failed: Called with the error.
        variables: Variables with their values within the block.
    """
    token = otel_context.attach(context)
    tokens = [(variable, variable.set(value)) for variable, value in variables]
    is_collected = False
    try:
        yield
    except BaseException as error:
        is_collected = isinstance(error, GeneratorExit)
        guarded(failed, error)
        raise
    finally:
        if not is_collected:
            otel_context.detach(token)
            for variable, before in tokens:
                variable.reset(before)
