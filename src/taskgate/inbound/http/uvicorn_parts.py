"""The parts of uvicorn that the gateway uses, imported without its command line."""

from __future__ import annotations

from taskgate.bare_packages import bare_package, imported_when_called

bare_package("uvicorn", Config="uvicorn.config")  # its module of the disabled lifespan reads it

# For a configuration of its logs and for the date header, which the gateway does not use.
with imported_when_called("logging.config", "configparser", "email.utils"):
    from uvicorn.config import Config as Config
    from uvicorn.protocols.http.flow_control import FlowControl as FlowControl
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpToolsProtocol
    from uvicorn.server import Server as Server
