"""What the runs of tasks ask about the tool they run, long after the call was judged: as its server lists it now."""

from __future__ import annotations

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.tool_listing import TaskSupport
from taskgate.core.errors import UpstreamError
from taskgate.core.tasks.task import Task
from taskgate.gateway.calls.call_tool import as_tool_result
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.handed_out import HandedOut
from taskgate.gateway.catalog.validate import Validation
from taskgate.turns import LARGE_BYTES


class ToolFacts:
    def __init__(self, catalogs: Catalogs, validation: Validation, handed_out: HandedOut) -> None:
        self._catalogs = catalogs
        self._validation = validation
        self._handed_out = handed_out

    def can_be_upstream_task(self, server: str, tool: str) -> bool:
        entry = self._entry(server, tool)
        return entry is not None and entry.task_support in (TaskSupport.OPTIONAL, TaskSupport.REQUIRED)

    async def check_output(self, task: Task, result: bytes) -> bytes:
        """What a task's tool gave, held against its schema; where that is enforced, a misfit becomes an error result."""
        if len(result) < LARGE_BYTES:
            self._handed_out.note(task.principal, task.scope, task.server, result)
        else:
            await self._handed_out.note_large(task.principal, task.scope, task.server, result)
        entry = self._entry(task.server, task.tool) if self._validation.on else None
        if entry is None or "outputSchema" not in entry.definition:
            return result
        try:
            await self._validation.output(entry, task.wire_name, result)
        except UpstreamError as problem:
            return as_tool_result(problem, task.generation)
        return result

    def _entry(self, server: str, tool: str) -> CatalogEntry | None:
        offer = self._catalogs.offer(server)
        entries = offer.entries.get(EntryKind.TOOL, ()) if offer is not None else ()
        return next((entry for entry in entries if entry.name == tool), None)
