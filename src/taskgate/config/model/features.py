"""Optional features: the facade tools, MCP Apps, completion, error codes, and compatibility with particular peers."""

from __future__ import annotations

from typing import Annotated, Literal

from taskgate.config.model.values import on_off
from taskgate.config.sections import BeforeValidator, Field, Section


class Facade(Section):
    """The facade tools: the gateway's own tools for finding and calling the tools of its servers."""

    add_server: Annotated[Literal["off", "session", "on"], BeforeValidator(on_off)] | None = Field(
        default=None,
        description="Whether callers may add servers at run time: `off` (default), `session` (callers on standard streams), or "
        "`on`. Rules apply to it as tool `add_server` of server `taskgate`.",
    )


class Apps(Section):
    """MCP Apps."""

    task_card: Annotated[Literal["auto", "all", "held", "off"], BeforeValidator(on_off)] = Field(
        default="auto",
        description="Which tools show the gateway's task card in hosts that render apps. `held`: tools whose calls may wait "
        "for approval; `all`: every tool whose calls may become tasks; `off`: none; `auto`: `all` for sessions "
        "whose host renders apps, and for 2026-07-28 callers the tools that are held or known to be slow.",
    )


class Completion(Section):
    """Argument completion."""

    learn: bool = Field(
        default=True,
        description="Suggest values that the same caller used before. Secrets are never stored.",
    )


class Errors(Section):
    """JSON-RPC error codes. The stable name of an error is always `data.error_type`."""

    profile: Literal["mcp", "erlmcp"] = Field(
        default="mcp",
        description="`erlmcp` uses the legacy error codes of the erlmcp server.",
    )
    task_codes: Literal["mcp", "seed"] = Field(
        default="mcp",
        description="`seed` returns -32009 and -32010 when a task is required or forbidden.",
    )


class Compat(Section):
    """Compatibility with particular clients and servers."""

    vendor_methods: bool = Field(
        default=False,
        description="Support `tasks/create`, `requests/cancel` and the list form of `elicitation/create`.",
    )
    result_not_ready: bool = Field(
        default=False,
        description="With `vendor_methods`: `tasks/result` of an unfinished task returns the error `result_not_ready` instead "
        "of waiting, as MCP specifies.",
    )
