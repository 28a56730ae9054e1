"""Optional features: the facade tools, MCP Apps, completion, error codes, and compatibility with particular peers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from taskgate.core.settings.section import Section, read_by
from taskgate.core.settings.values import on_off


class Facade(Section):
    """The facade tools: the gateway's own tools for finding and calling the tools of its servers."""

    add_server: Annotated[
        Literal["off", "session", "on"] | None,
        read_by(on_off),
        Meta(
            description="Whether callers may add servers at run time: `off` (default), `session` (callers on standard "
            "streams), or `on`. Rules apply to it as tool `add_server` of server `taskgate`."
        ),
    ] = None


class Apps(Section):
    """MCP Apps."""

    task_card: Annotated[
        Literal["auto", "all", "held", "off"],
        read_by(on_off),
        Meta(
            description="Which tools show the gateway's task card in hosts that render apps. `held`: tools whose calls may "
            "wait for approval; `all`: every tool whose calls may become tasks; `off`: none; `auto`: `all` for "
            "sessions whose host renders apps, and for 2026-07-28 callers the tools that are held or known to be "
            "slow."
        ),
    ] = "auto"


class Completion(Section):
    """Argument completion."""

    learn: Annotated[
        bool, Meta(description="Suggest values that the same caller used before. Secrets are never stored.")
    ] = True


class Errors(Section):
    """JSON-RPC error codes. The stable name of an error is always `data.error_type`."""

    profile: Annotated[
        Literal["mcp", "erlmcp"], Meta(description="`erlmcp` uses the legacy error codes of the erlmcp server.")
    ] = "mcp"
    task_codes: Annotated[
        Literal["mcp", "seed"],
        Meta(description="`seed` returns -32009 and -32010 when a task is required or forbidden."),
    ] = "mcp"


class Compat(Section):
    """Compatibility with particular clients and servers."""

    vendor_methods: Annotated[
        bool, Meta(description="Support `tasks/create`, `requests/cancel` and the list form of `elicitation/create`.")
    ] = False
    result_not_ready: Annotated[
        bool,
        Meta(
            description="With `vendor_methods`: `tasks/result` of an unfinished task returns the error `result_not_ready` "
            "instead of waiting, as MCP specifies."
        ),
    ] = False
