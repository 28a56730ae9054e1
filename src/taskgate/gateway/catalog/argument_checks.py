"""Check the arguments of a call against the tool's input schema, and note them for completion."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.gateway.catalog.completions import MAX_NOTED_BYTES, Completions
from taskgate.gateway.catalog.refs import ToolRef
from taskgate.gateway.catalog.validate import Validation
from taskgate.gateway.features import Validate
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.caller_keys import memory_key
from taskgate.gateway.requests.request import Request

_UNCHECKED: Final = Validate.OFF


class ArgumentChecks(msgspec.Struct, eq=False):
    """Applies the settings of the plan in force."""

    _plan: Live[Plan]
    _validation: Validation
    _completions: Completions

    async def prepare(self) -> None:
        """See `Validation.prepare`."""
        await self._validation.prepare()

    def before_hold(self, request: Request, tool: ToolRef, arguments: Any) -> str:
        """See `Validation.before_hold`."""
        return self._validation.before_hold(tool.entry, tool.wire, arguments, request.message.raw_params or b"")

    def validate_and_learn(self, request: Request, tool: ToolRef, arguments: Any) -> None:
        features, params = self._plan.value.features, request.message.raw_params or b""
        if tool.entry is not None and features.validate is not _UNCHECKED:
            self._validation.arguments(tool.entry, tool.wire, arguments, params)
        if arguments and features.learn and len(params) <= MAX_NOTED_BYTES:
            self._completions.note(memory_key(request), tool.server, tool.name, arguments)
