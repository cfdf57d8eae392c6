"""The schema of a store, and whether this version of Pellucid would change it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import anyio.to_thread

from pellucid.durable.store.statements import REVISION, schema
from pellucid.durable.store.transactions import Transactions
from pellucid.errors import ConfigError


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

    def check(self) -> None:
        """Check that there is a store which can be opened without a change.

        Raises:
            ConfigError: there is none, or it needs a migration.
        """
        if not self.version:
            raise ConfigError("there is no store of durable runs in this database; check its URL")
        if self.statements:
            raise ConfigError(
                f"the schema of the store has revision {self.revision}, and this Pellucid needs {self.needed}; "
                "look at `pellucid durable migrate --check`, and run it without --check"
            )


class SchemaMethods(Transactions):
    """Methods of the store about its schema."""

    async def schema_state(self) -> SchemaState:
        """Return the state of the schema, without changing it; the store need not be open.

        Raises:
            ConfigError: the database is not a store, or one of a version that is not compatible.
            StoreUnavailable: the database did not answer in time.
        """
        version, revision = await self._repeat(partial(anyio.to_thread.run_sync, self._database.schema))
        statements = tuple(schema(self._database.name, version, revision))
        assert isinstance(version, int)  # otherwise it was refused
        return SchemaState(version, revision or version, REVISION, statements)
