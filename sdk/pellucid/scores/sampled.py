"""Scorers of a share of the runs."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from pellucid.errors import ConfigError
from pellucid.scores.scored import Scored
from pellucid.scores.scoring import Scorer, check_recorded, check_scorer, name_of, needed_by, signature_of

_RANDOM: Final = 14
"""Last hexadecimal digits of a trace id, which W3C Trace Context says are random."""


class Sampled:
    """A scorer of a share of the runs: the same in every process, since the id of the trace decides.

    ```python
    polite = judge("The answer is polite.", model="openai:gpt-6-sol")
    Agent("support", model=model, scorers=[no_secret, Sampled(0.05, polite)])
    ```

    Args:
        share: Share of the runs, above 0 and at most 1.
        scorer: Their scorer; a run that is not among them has no score of it.

    Attributes:
        name: That of the scorer.

    Raises:
        ConfigError: the share is none, or the scorer is.
    """

    def __init__(self, share: float, scorer: Scorer) -> None:
        given: object = share
        if not (isinstance(given, (int, float)) and 0 < given <= 1):
            raise ConfigError(f"Sampled({share!r}, ...): the share must be above 0 and at most 1")
        check_scorer(scorer)
        self.name = name_of(scorer)
        self.share, self.scorer = share, scorer
        self._needed = needed_by(scorer)
        self.__signature__ = signature_of(*self._needed, "scored", "missing")

    def __call__(self, **facts: Any) -> object:
        """Score a run, if it is one of the share."""
        if not self.includes(facts["scored"]):
            return None
        check_recorded(self._needed, facts["missing"])
        needed: Mapping[str, Any] = {name: facts[name] for name in self._needed}
        return self.scorer(**needed)

    def includes(self, scored: Scored) -> bool:
        """Return whether a run is one of the share; without a trace, the id of the run decides."""
        digits = scored.trace_id or blake2b((scored.run_id or scored.response_id).encode(), digest_size=8).hexdigest()
        return int(digits[-_RANDOM:], 16) < self.share * 16**_RANDOM
