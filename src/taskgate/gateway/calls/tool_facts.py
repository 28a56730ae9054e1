"""Properties of a tool that a task run needs, as the server lists the tool now."""

from __future__ import annotations

import msgspec

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.links import MARK
from taskgate.core.catalog.task_support import TaskSupport
from taskgate.core.errors import UpstreamError
from taskgate.core.tasks.task import Task
from taskgate.gateway.calls.tool_results import as_tool_result
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.returned_uris import ReturnedUris
from taskgate.gateway.catalog.validate import Validation
from taskgate.gateway.requests.caller_keys import fair_key_of
from taskgate.turns import LARGE_BYTES


class ToolFacts(msgspec.Struct, eq=False):
    _catalogs: Catalogs
    _validation: Validation
    _handed_out: ReturnedUris

    def can_be_upstream_task(self, server: str, tool: str) -> bool:
        entry = self._entry(server, tool)
        return entry is not None and entry.task_support in (TaskSupport.OPTIONAL, TaskSupport.REQUIRED)

    async def check_output(self, task: Task, result: bytes) -> bytes:
        """Validate the result of a task against the tool's output schema. If that is enforced, an invalid result becomes an
        error result.
        """
        if len(result) >= LARGE_BYTES:
            await self._handed_out.note_large(fair_key_of(task), task.scope, task.server, result)
        elif MARK in result:
            self._handed_out.note(fair_key_of(task), task.scope, task.server, result)
        entry = self._entry(task.server, task.tool) if self._validation.on else None
        if entry is None or not entry.traits.has_output_schema:
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
