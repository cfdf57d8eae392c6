"""Tokens with which a browser scores one run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from pellucid.durable import CallTokens

PREFIX: Final = "pst1"
"""Beginning of each token: Pellucid score token, version 1."""


@dataclass(frozen=True, slots=True)
class ScoreGrant:
    """Grant of a token: one score of each name of one run, until it expires.

    Attributes:
        run_id: Id of the durable run.
        trace_id, span_id: Its trace, and the span with the answer, if they were known; else empty.
        agent, version: Its agent.
        names: Names of scores.
        by: The judge.
        expires_at: Seconds since the epoch.
    """

    run_id: str
    trace_id: str
    span_id: str
    agent: str
    version: str
    names: tuple[str, ...]
    by: str
    expires_at: int


def issue(tokens: CallTokens, grant: ScoreGrant) -> str:
    """Return the token of a grant, signed by the first key."""
    about = [grant.run_id, grant.trace_id, grant.span_id, grant.agent, grant.version]
    return tokens.sign(PREFIX, [*about, list(grant.names), grant.by, grant.expires_at])


def grant_of(tokens: CallTokens, token: str) -> ScoreGrant | None:
    """Return what a token allows, or has allowed until it expired; None if it is not ours, or was changed."""
    match tokens.claims(PREFIX, token):
        case [str(run_id), str(trace_id), str(span_id), str(agent), str(version), [*names], str(by), int(expires_at)]:
            return ScoreGrant(run_id, trace_id, span_id, agent, version, tuple(map(str, names)), by, expires_at)
        case _:
            return None


def digest_of(token: str) -> str:
    """Return the digest by which a store knows a token."""
    return hashlib.sha256(token.encode()).hexdigest()
