"""What `taskgate serve` prints when it serves, and its start without the command line library."""

from __future__ import annotations

import gc
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskgate.config.load import LoadedConfig

_OPTIONS = {"-c": "config", "--config": "config", "--host": "host", "--port": "port"}
_SWITCHES = {"--on-demand": "on_demand", "--found": "found"}


def options(arguments: list[str]) -> dict[str, str] | None:
    """Parse the usual options of `taskgate serve`. Return None if the full command line parser is needed."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument in _SWITCHES:
            found[_SWITCHES[argument]] = ""
            continue
        name, equals, value = argument.partition("=")
        key = _OPTIONS.get(name) if name.startswith("--") or not equals else None
        given = value if equals else next(rest, None)
        if key is None or given is None:
            return None
        found[key] = given
    port = found.get("port", "0")
    return found if port.isascii() and port.isdigit() and int(port[:6]) <= 65535 else None


def serve_with(given: dict[str, str]) -> None:
    """Run `taskgate serve` with the options that `options` found."""
    # Until its modules are imported, collecting garbage repeatedly would take longer than collecting it once.
    gc.set_threshold(1_000_000, 20, 20)
    from taskgate.cli.loading import loaded_or_exit
    from taskgate.cli.run_gateway import run_gateway, run_on_demand

    # Creating a class with slots leaves its first form behind. Collected now, this memory (1.2 MB) is used by what follows; later
    # it could not be returned to the operating system. What is imported stays, and is not examined again during the start.
    gc.collect()
    gc.freeze()
    if "on_demand" in given:
        run_on_demand(given.get("config"), is_found="found" in given)
    else:
        port = int(given["port"]) if "port" in given else None
        run_gateway(loaded_or_exit(given.get("config")), given.get("host"), port, announce)


NO_SERVERS = "No server is configured. Add one under `servers`, or run: taskgate import"


def announce(loaded: LoadedConfig, host: str, port: int, login_url: Callable[[], str] | None = None) -> None:
    """Print the address, and how to connect a client.

    `login_url` creates a login link that works once. It is printed only on a terminal, never to a log.
    """
    from taskgate.assembly.exposure import BANNER, is_reachable_without_login

    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if loaded.root.listen.tls is None else "https"
    url = f"{scheme}://{shown}:{port}/mcp"
    print(f"Taskgate is serving at {url}", flush=True)
    if is_reachable_without_login(loaded.root, host):
        print(BANNER, flush=True)
    if not any(server.enabled for server in loaded.root.servers.values()):
        print(NO_SERVERS, flush=True)
    if loaded.path is None:
        print(
            "No configuration file found; serving the bundled demo server. Create one with: taskgate init", flush=True
        )
    if sys.stdout.isatty() or loaded.path is None:
        block = json.dumps({"mcpServers": {"taskgate": {"type": "http", "url": url}}})
        print(f"Add to your client's configuration:\n  {block}", flush=True)
        print(f"Or, for Claude Code:\n  claude mcp add --transport http taskgate {url}", flush=True)
    if loaded.path is None:
        print(
            "Then ask your agent to list the files, or to delete one: a deletion waits for your approval.", flush=True
        )
    if sys.stdout.isatty() and login_url is not None:
        print(f"Approve calls in your browser (the link works once):\n  {login_url()}", flush=True)
    elif loaded.path is None:
        print("Approve calls in your browser: `taskgate approvals login` prints a link.", flush=True)
