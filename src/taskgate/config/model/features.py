"""Optional features: the facade tools, MCP Apps, completion, error codes, and compatibility with particular peers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from taskgate.config.model.values import Section


def _word_for_switch(value: Any) -> Any:
    """`true` and `false` where a word is wanted: YAML writers mean on and off."""
    word = str(value).lower() if isinstance(value, (bool, str)) else value
    return {"true": "on", "yes": "on", "false": "off", "no": "off"}.get(word, word)


class Facade(Section):
    """The facade tools."""

    add_server: Annotated[Literal["off", "session", "on"], BeforeValidator(_word_for_switch)] | None = Field(
        default=None,
        description="Whether callers may add servers: off (the default), session (callers on standard streams), on. "
        "Governed as the tool add_server of the server taskgate.",
    )


class Apps(Section):
    """MCP Apps."""

    task_card: Annotated[Literal["auto", "all", "held", "off"], BeforeValidator(_word_for_switch)] = Field(
        default="auto",
        description="Which tools show the gateway's task card in hosts that render apps: held (calls that may wait for people), "
        "all (every tool whose calls may become tasks), off, or auto (all for sessions whose host renders apps; for callers of "
        "2026-07-28 those that are held or known to take long).",
    )


class Completion(Section):
    """Argument completion."""

    learn: bool = Field(
        default=True,
        description="Remember values that a caller used before, for that caller only, never secrets.",
    )


class Errors(Section):
    """Which numbers errors bear; the stable name is always data.error_type."""

    profile: Literal["mcp", "erlmcp"] = Field(
        default="mcp",
        description="erlmcp puts that server's legacy numbers on the wire.",
    )
    task_codes: Literal["mcp", "seed"] = Field(
        default="mcp",
        description="seed answers -32009 and -32010 for task required and forbidden.",
    )


class Compat(Section):
    """Behaviour for particular peers."""

    vendor_methods: bool = Field(
        default=False,
        description="Answer tasks/create, requests/cancel and the list form of elicitation/create.",
    )
    result_not_ready: bool = Field(
        default=False,
        description="With vendor_methods: tasks/result of a task that has not ended is the error result_not_ready instead of "
        "waiting for the end, as MCP has it.",
    )
