"""Tool definitions that differ from their pins, as JSON: list and accept."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.identity.access import Access
from taskgate.dashboard.routes import TEXT, Route, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.ports.pinned_definitions import PinnedDefinitions
from taskgate.replies.definitions import AcceptedDefinition, ChangedDefinition, DefinitionAccepted

_DEFINITION: Final = closed_object(("server", "tool", "digest"), server=TEXT, tool=TEXT, digest=TEXT)


class DefinitionsApi(msgspec.Struct, eq=False):
    _pins: PinnedDefinitions

    def routes(self) -> tuple[Route, ...]:
        return (
            get(
                "/pins",
                Access.SEE,
                self._list,
                "Tool definitions that differ from their pins.",
                command="taskgate pins list",
                answer=list[ChangedDefinition],
            ),
            get(
                "/pins/history",
                Access.SEE,
                self._history,
                "Accepted definitions of one tool, newest first, each with its differences from the one before.",
                command="taskgate pins history TOOL",
                query={"server": "name of the server", "tool": "name of the tool at its server"},
                answer=list[AcceptedDefinition],
            ),
            post(
                "/pins/accept",
                Access.ACT,
                self._accept,
                "Accept a changed definition.",
                _DEFINITION,
                command="taskgate pins accept TOOL",
                answer=DefinitionAccepted,
            ),
        )

    def changed(self) -> list[ChangedDefinition]:
        return self._pins.changed_rows()

    async def accept(self, visit: Visit, server: str, tool: str, digest: str) -> bool:
        """Accept the definition with this digest; False if it is no longer the current one."""
        return await self._pins.accept(server, tool, digest, visit.user.id)

    async def _list(self, _visit: Visit) -> Answer:
        return json_answer(self.changed())

    async def _history(self, visit: Visit) -> Answer:
        server, tool = visit.parameter("server"), visit.parameter("tool")
        if server is None or tool is None:
            return problem(400, "Name the server and the tool.")
        return json_answer(await self._pins.accepted_definitions(server, tool))

    async def _accept(self, visit: Visit) -> Answer:
        body = visit.request.json()
        server, tool, digest = (body.get(name) for name in ("server", "tool", "digest"))
        if type(server) is not str or type(tool) is not str or type(digest) is not str:
            return problem(400, "Send server, tool and the digest of the definition that you reviewed, as strings.")
        if not await self.accept(visit, server, tool, digest):
            text = "No changed definition with this digest. It may have changed again: review the current one."
            return problem(409, text)
        return json_answer(DefinitionAccepted(server=server, tool=tool, digest=digest, accepted_by=visit.user.id))
