"""Sessions: conversations of an agent that are kept between its runs, in memory or in a database."""

from pellucid.sessions.session import Session

__all__ = ["Session"]
