"""Resources of the gateway itself: diagrams of how it works, and the state of its servers as this caller may see it.

They are listed wherever the gateway is not meant to be transparent (plain names, no facade), and can be read everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskgate.core import wire
from taskgate.core.catalog.names import NameStyle
from taskgate.core.catalog.own_tools import LISTED
from taskgate.core.generations import Generation, cached_privately
from taskgate.core.scoping.scope import ScopeMode, ScopePolicy
from taskgate.gateway.own_tools.own_content import own_content
from taskgate.gateway.own_tools.table import FACADE_MODES
from taskgate.gateway.requests.request import Request

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context

_RENDERED: Final = [wire.encode(resource) for resource in LISTED]
_FACADE_TEXT: Final = (
    "This gateway offers its servers through a few tools: list_servers and list_tools show what there is, execute_tool "
    "runs a tool, await_activity waits for news, get_elicitations shows what servers ask you."
)


def shown(scope: ScopePolicy | None) -> bool:
    return scope is not None and (scope.names is not NameStyle.PLAIN or scope.mode in FACADE_MODES)


def listing(scope: ScopePolicy, servers_own: list[bytes]) -> list[bytes]:
    return [*servers_own, *_RENDERED] if shown(scope) else servers_own


def instructions(scope: ScopePolicy | None) -> str:
    return _FACADE_TEXT if scope is not None and scope.mode is ScopeMode.FACADE else ""


async def read_own_resource(context: Context, request: Request) -> bytes | None:
    """The resource if it is one of ours, else None."""
    uri = request.params.get("uri")
    content = await own_content(context, request, uri) if type(uri) is str else None
    if content is None:
        return None
    body = wire.encode({"contents": [content]})
    return cached_privately(body) if request.generation is Generation.STATELESS else body
