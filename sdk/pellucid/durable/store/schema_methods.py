"""The schema of a store, and whether this version of Pellucid would change it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import anyio.to_thread

from pellucid.durable.store.statements import REVISION, schema
from pellucid.durable.store.transactions import Transactions


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Schema of a store.

    Attributes:
        version: Version whose code works with it; 0 if there is none yet.
        revision: Revision that it has.
        needed: Revision that this version of Pellucid has, and to which it brings the schema when it opens the store.
        statements: Statements that do so; empty if there is nothing to do.
    """

    version: int
    revision: int
    needed: int
    statements: tuple[str, ...]


class SchemaMethods(Transactions):
    """Methods of the store about its schema."""

    async def schema_state(self) -> SchemaState:
        """Return the state of the schema, without changing it; the store need not be open.

        Raises:
            ConfigError: the database is not a store, or one of a version that is not compatible.
            StoreUnavailable: the database did not answer in time.
        """
        read = partial(anyio.to_thread.run_sync, self._database.schema, limiter=self._read_limiters.get())
        version, revision = await self._repeat(read)
        statements = tuple(schema(self._database.name, version, revision))
        assert isinstance(version, int)  # otherwise it was refused
        return SchemaState(version, revision or version, REVISION, statements)
