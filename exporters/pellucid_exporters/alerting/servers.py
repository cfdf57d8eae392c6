"""Alerts on tool servers, seen from inside: slow, failing, hanging."""

from __future__ import annotations

from pellucid_exporters.alerting.definition import TEN_MINUTES, Context, Definition, Words, share


def slow(context: Context, words: Words) -> Definition:
    """Define the alert on requests that take longer than the server's objective."""
    return Definition(
        name="ToolServerSlow",
        severity="ticket",
        after=300.0,
        summary=f"{words.subject} is slow: {words.value} of its requests in {context.window(TEN_MINUTES)} took longer "
        f"than its objective of {words.objective}; the limit is {share(context.thresholds.server_slow)}.",
        description="Measured inside the server, so that neither network nor queues before it are the cause.",
    )


def failing(context: Context, words: Words) -> Definition:
    """Define the alert on failed requests."""
    return Definition(
        name="ToolServerFailing",
        severity="page",
        after=120.0,
        summary=f"{words.subject} fails: {words.value} of its requests in {context.window(TEN_MINUTES)}; the limit is "
        f"{share(context.thresholds.server_failing)}.",
        description="Callers got an error, or a result that says that the tool failed. Requests that clients "
        "cancelled, or that were wrong, are not failures.",
    )


def hanging(context: Context, words: Words) -> Definition:
    """Define the alert on a request that does not end."""
    thresholds = context.thresholds
    return Definition(
        name="ToolServerHanging",
        severity="page",
        summary=f"{words.subject} hangs: its oldest request has been in flight for {words.value}; its objective is "
        f"{words.objective}.",
        description=f"The limit is {thresholds.server_hanging_after:g} s, or "
        f"{thresholds.server_hanging_objectives:g} times the objective if that is longer. Requests that stay open by "
        f"design are not counted.",
    )
