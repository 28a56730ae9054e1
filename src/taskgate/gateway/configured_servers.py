"""The servers of the configuration in force."""

from __future__ import annotations

from typing import NoReturn

from taskgate.core.errors import Executed, UpstreamError
from taskgate.ports.upstream import Upstream


class ConfiguredServers(dict[str, Upstream]):
    """The servers by name. A reload may have removed one while a request waited for it: then the request gets an error."""

    def __missing__(self, name: str) -> NoReturn:
        text = f"The server {name} is not configured any more. The request was not executed."
        raise UpstreamError("upstream_unreachable", text, executed=Executed.NO)
