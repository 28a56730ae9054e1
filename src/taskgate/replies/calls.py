"""Calls through the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from taskgate.replies.fields import about


class CallResult(Struct, frozen=True, kw_only=True):
    """The reply to a call."""

    result: Annotated[Any | UnsetType, about("result of the call, or its task handle")] = UNSET
    error: Annotated[Any | UnsetType, about("JSON-RPC error of the call")] = UNSET
    task_id: Annotated[str | None, about("task that the call became; null if it did not")]

    @property
    def received(self) -> Any:
        """The error or the result."""
        return self.error if self.error is not UNSET else self.result

    @property
    def is_error(self) -> bool:
        is_tool_error = type(self.result) is dict and self.result.get("isError") is True
        return self.error is not UNSET or is_tool_error


class Tools(Struct, frozen=True, kw_only=True):
    """The tools of a scope."""

    scope: Annotated[str, about("name of the scope")]
    tools: Annotated[Sequence[Mapping[str, Any]], about("tools as in `tools/list`")]
