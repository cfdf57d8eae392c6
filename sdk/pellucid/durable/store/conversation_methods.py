"""Methods of the store on conversations."""

from __future__ import annotations

from functools import partial

from pellucid.durable.store import conversations
from pellucid.durable.store.conversations import END
from pellucid.durable.store.records import ConversationPage
from pellucid.durable.store.retry_methods import RetryMethods


class ConversationMethods(RetryMethods):
    """Conversations: runs in the order of their submission, of which one at a time has started and not ended.

    A queued run starts in the transaction in which the one before it ends. If an earlier version of Pellucid has ended
    that one, the next `recover` starts it.
    """

    async def conversation(
        self, conversation: str, *, before: int | None = None, limit: int | None = None
    ) -> ConversationPage:
        """Return the latest runs of a conversation, in order; none if it is unknown.

        Args:
            conversation: Id given to `submit`.
            before: Only runs before this place.
            limit: Maximum number of runs; None for all.
        """
        return await self._read(
            partial(
                conversations.conversation,
                conversation=conversation,
                before=before if before is not None else END,
                limit=limit if limit is not None else END,
            )
        )
