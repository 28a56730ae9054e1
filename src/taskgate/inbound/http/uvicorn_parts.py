"""The parts of uvicorn that the gateway uses, imported without its command line."""

from __future__ import annotations

from taskgate.bare_packages import bare_package

bare_package("uvicorn", Config="uvicorn.config")  # its module of the disabled lifespan reads it

from uvicorn.config import Config as Config  # noqa: E402
from uvicorn.protocols.http.flow_control import FlowControl as FlowControl  # noqa: E402
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpToolsProtocol  # noqa: E402
from uvicorn.server import Server as Server  # noqa: E402
