"""Why an address cannot be listened on, as a sentence with the next step."""

from __future__ import annotations

import errno
import socket


def listen_error(address: str, problem: OSError) -> str:
    """Return the sentence for a failed bind of `HOST:PORT`."""
    port = address.rpartition(":")[2]
    if problem.errno == errno.EADDRINUSE and port.isdigit():
        return f"Port {port} is in use. `taskgate status` lists running gateways; --port 0 selects a free port."
    if problem.errno == errno.EACCES and port.isdigit():
        return f"No permission to listen on port {port}. Use a port above 1023, for example --port 7467."
    return f"Cannot listen on {address}: {problem.strerror or problem}. Check listen.host and listen.port."


def listen_problem(host: str, port: int) -> str | None:
    """Return why an address cannot be listened on now, or None."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            return listen_error(f"{host}:{port}", problem)
    return None
