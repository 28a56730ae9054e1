"""Recent requests and their server calls."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from taskgate.replies.fields import about


class RecentRequest(Struct, frozen=True, kw_only=True):
    """A request, a call to a server, or the run of a task."""

    id: Annotated[int, about("id of the request or server call")]
    parent: Annotated[int | None, about("request that caused the server call; null for a request")]
    kind: Annotated[str, about("`request`, `upstream` (a call to a server) or `task` (the run of a task)")]
    method: Annotated[str, about("MCP method")]
    name: Annotated[str, about("tool, resource or prompt")]
    server: Annotated[str, about("server; may be empty")]
    caller: Annotated[str, about("principal of the caller")]
    start_ms: Annotated[float, about("start, in milliseconds since 1970")]
    end_ms: Annotated[float | None, about("end; null while it runs")]
    state: Annotated[str, about("`running`, `ok` or how it ended")]
    task: Annotated[str | None, about("task that the request became, or whose run this is")]
    script: Annotated[str | None, about("task of the script that made the call")]
    line: Annotated[int | None, about("line of the call in the source of its script")]
