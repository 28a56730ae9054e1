"""Tool definitions that differ from their pins, as JSON: list and accept."""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.catalog.entry import EntryKind
from taskgate.core.identity.access import Access
from taskgate.core.risk import Risk
from taskgate.dashboard.routes import TEXT, Route, Schema, Visit, closed_object, get, post
from taskgate.dashboard.web import Answer, json_answer, problem
from taskgate.ports.listed_tools import ListedTools
from taskgate.ports.pinned_definitions import PinnedDefinitions
from taskgate.replies.definitions import AcceptedDefinition, ChangedDefinition, DefinitionAccepted, RiskStated

_RISKS: Final[Schema] = {"type": "string", "enum": [risk.value for risk in Risk]}
_RISK: Final = closed_object(("server", "tool", "risk"), server=TEXT, tool=TEXT, digest=TEXT, risk=_RISKS)
_DEFINITION: Final = closed_object(("server", "tool", "digest"), server=TEXT, tool=TEXT, digest=TEXT)


class DefinitionsApi(msgspec.Struct, eq=False):
    _pins: PinnedDefinitions
    _lists: ListedTools

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
            post(
                "/pins/risk",
                Access.ACT,
                self._state_risk,
                "State the risk of a tool, for the rules that depend on it. The statement is bound to the present definition.",
                _RISK,
                command="taskgate pins risk TOOL RISK",
                answer=RiskStated,
            ),
        )

    def changed(self) -> list[ChangedDefinition]:
        return self._pins.changed_rows()

    async def accept(self, visit: Visit, server: str, tool: str, digest: str) -> bool:
        """Accept the definition with this digest; False if it is no longer the current one."""
        return await self._pins.accept(server, tool, digest, visit.user.id)

    async def state_risk(self, visit: Visit, server: str, tool: str, digest: str | None, risk: Risk) -> str | None:
        """Return the digest of the definition that the statement is bound to. None if no server lists the tool, or with another
        definition than that with `digest`.
        """
        offer = self._lists.offer(server)
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        entry = next((entry for entry in entries if entry.name == tool), None)
        if entry is None or digest not in (None, entry.digest):
            return None
        await self._pins.state_risk(server, tool, entry.digest, risk, visit.user.id)
        return entry.digest

    async def _state_risk(self, visit: Visit) -> Answer:
        body = visit.request.json()
        server, tool, digest, word = (body.get(name) for name in ("server", "tool", "digest", "risk"))
        if type(server) is not str or type(tool) is not str or word not in tuple(Risk):
            return problem(400, f"Send server, tool and risk, which is one of {', '.join(Risk)}.")
        risk = Risk(word)
        bound = await self.state_risk(visit, server, tool, digest, risk)
        if bound is None:
            return problem(
                409, "The server lists no such tool, or with another definition than the one that you reviewed."
            )
        return json_answer(RiskStated(server=server, tool=tool, digest=bound, risk=risk, stated_by=visit.user.id))

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
