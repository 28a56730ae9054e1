"""What goes with a session when it ends, and what outlives it.

Its streams and subscriptions go at once. The conversations with servers that its tasks run in stay until the last of them
has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from taskgate.gateway.context import Context
from taskgate.gateway.sessions import Session
from taskgate.gateway.subscriptions import Subscriptions
from taskgate.gateway.tasks.conversation import RESUMED


class SessionEnds:
    def __init__(self, context: Callable[[], Context], subscriptions: Subscriptions) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._told: list[Callable[[Session], None]] = []
        self._outlived: set[str] = set()

    def tell(self, hook: Callable[[Session], None]) -> None:
        self._told.append(hook)

    async def ended(self, session: Session) -> None:
        for hook in self._told:
            hook(session)
        await self._subscriptions.release(self._context(), session)
        if self._context().tasks.runs.uses(session.id):
            self._outlived.add(session.id)
        else:
            await self._let_go(session.id)

    async def last_task_ended(self, session_id: str) -> None:
        """If the session of a conversation is gone, the conversation may go too."""
        if session_id in self._outlived or session_id.startswith(RESUMED):
            self._outlived.discard(session_id)
            await self._let_go(session_id)

    def end_streams(self) -> None:
        """Long-lived streams of sessions end now; the sessions themselves are told by the closing gateway."""
        for session in self._context().sessions:
            for hook in self._told:
                hook(session)

    async def _let_go(self, session_id: str) -> None:
        for upstream in self._context().upstreams.values():
            await upstream.release(session_id)
