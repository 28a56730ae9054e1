"""`taskgate status`, `stop`, `reload`: the gateways of this user that are running now; and how every command asks one of them.

The client for a gateway's `/api` is small and synchronous, on the standard library: a command asks a question or two and leaves, as
the operator or as whoever's token is given. The operator's token is sent to this machine only.
"""

from __future__ import annotations

import glob
import http.client
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from taskgate import clock
from taskgate.bridge.meeting import read_record
from taskgate.cli import say
from taskgate.cli.say import ExitCode
from taskgate.folders import find_config, gateway_key, state_folder

DEFAULT_GATEWAY = "http://127.0.0.1:7467"
TIMEOUT_S = 30
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts: one object a line.")]


class SeveralGateways(Exception):
    """More than one gateway runs, and nothing says which one is meant."""


def register(app: typer.Typer) -> None:
    """Put the commands on the application."""
    app.command("status")(status)
    app.command("stop")(stop)
    app.command("reload")(reload)


def status(as_json: Json = False) -> None:
    """List this user's running gateways: where they are, what they serve, and since when."""
    found = running_gateways()
    for record in found:
        print(json.dumps(record, ensure_ascii=False) if as_json else _shown(record))
    if not found and not as_json:
        say.note(
            "No gateway is running. `taskgate serve` starts one; `taskgate stdio` starts one when a client needs it."
        )


def stop() -> None:
    """End the gateways that clients started; they come back when a client needs them."""
    found = [record for record in running_gateways() if record["kind"] == "on-demand"]
    for record in found:
        os.kill(record["pid"], signal.SIGTERM)
        print(f"{record['url']} (process {record['pid']}) is told to end.")
    if not found:
        say.note("No gateway that a client started is running.")
        raise typer.Exit(ExitCode.NOT_FOUND)


def reload(
    gateway: Annotated[str | None, typer.Option("--gateway", help="Address of the gateway.")] = None,
    as_json: Json = False,
) -> None:
    """Let a running gateway read its configuration again. A file with mistakes changes nothing."""

    def work(api: GatewayApi) -> None:
        done = api.post("/api/v1/system/reload", {}).value
        print(json.dumps(done) if as_json else "The configuration was read again and is in force.")

    ask_gateway(work, gateway, None, as_json)


def _shown(record: dict[str, Any]) -> str:
    minutes = max(0, int(clock.wall() - record["since"])) // 60
    kind = "started by a client, ends when idle" if record["kind"] == "on-demand" else "started with `taskgate serve`"
    lines = [
        str(record["url"]),
        f"  serves   {record['config'] or 'the bundled demo'}",
        f"  process  {record['pid']}, version {record['version']}, for {minutes} min, {kind}",
    ]
    if record["kind"] == "on-demand":
        lines.append(f"  log      {record['log']}")
    return "\n".join(say.clean(line) for line in lines)


# Which gateway is meant.


def running_gateways() -> list[dict[str, Any]]:
    """What the gateways of this state folder say about themselves, without the keys; those that crashed are left out."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(state_folder(os.environ)), "run", "*.json"))):
        record = read_record(path)
        if record is not None and _alive(record.get("pid")):
            kept = {name: value for name, value in record.items() if name != "key"}
            found.append({**kept, "log": path.removesuffix(".json") + ".log"})
    return found


def default_gateway() -> str:
    """The gateway that commands talk to when nothing is said: the one of the configuration that is found here, or the only one."""
    running = running_gateways()
    config = find_config(None, os.environ)
    own = gateway_key(state_folder(os.environ), config)
    for record in running:
        if os.path.basename(record["log"]) == f"{own}.log":
            return str(record["url"])
    if len(running) > 1:
        known = ", ".join(f"{record['url']} ({record['config'] or 'demo'})" for record in running)
        raise SeveralGateways(f"Several gateways are running: {known}. Say which with --gateway or $TASKGATE_URL.")
    return str(running[0]["url"]) if running else DEFAULT_GATEWAY


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def operator_token(host: str | None) -> str | None:
    """The operator's own token, which `serve` keeps on this machine; it is sent to no other machine."""
    if host not in _LOOPBACK:
        return None
    try:
        return (Path(state_folder(os.environ)) / "operator-token").read_text().strip() or None
    except OSError:
        return None


# Asking it.


class ApiProblem(Exception):
    """What went wrong, and the exit code it deserves."""

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    value: Any
    next_after: str | None = None


_EXITS = {
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.REFUSED,
    410: ExitCode.REFUSED,
}


class GatewayApi:
    def __init__(self, gateway: str | None, token: str | None) -> None:
        try:
            self._address = gateway or os.environ.get("TASKGATE_URL") or default_gateway()
        except SeveralGateways as problem:
            raise ApiProblem(ExitCode.USAGE, str(problem)) from None
        parts = urlsplit(self._address if "://" in self._address else f"http://{self._address}")
        if parts.hostname is None or parts.scheme not in ("http", "https"):
            raise ApiProblem(ExitCode.USAGE, f"{self._address} is not the address of a gateway.")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._token = token or os.environ.get("TASKGATE_TOKEN") or operator_token(self._host)

    def get(self, path: str) -> Reply:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Reply:
        return self._ask("POST", path, json.dumps(body).encode())

    def delete(self, path: str) -> Reply:
        return self._ask("DELETE", path, None)

    def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            raw, status, after = answer.read(), answer.status, answer.getheader("x-next-after")
        except (OSError, http.client.HTTPException) as problem:
            hint = "Is it running? Start it with: taskgate serve"
            raise ApiProblem(
                ExitCode.CANNOT_CONNECT, f"No gateway answers at {self._address} ({problem}). {hint}"
            ) from None
        finally:
            connection.close()
        return self._read(raw, status, after)

    def _read(self, raw: bytes, status: int, after: str | None) -> Reply:
        try:
            value = json.loads(raw) if raw else {}
        except ValueError:
            raise ApiProblem(ExitCode.CANNOT_CONNECT, f"{self._address} is not a Taskgate gateway.") from None
        if status >= 400:
            said = value if isinstance(value, dict) else {}
            text = said.get("message") or said.get("error") or f"the gateway answered {status}"
            if status == 401:
                text = "The gateway wants a token: set $TASKGATE_TOKEN, or run this as the user who runs the gateway."
            raise ApiProblem(_EXITS.get(status, ExitCode.FAILED), say.clean(text))
        return Reply(status, value, after)


def ask_gateway(work: Callable[[GatewayApi], None], gateway: str | None, token: str | None, as_json: bool) -> None:
    """Run one command against a gateway, and turn what goes wrong into words and an exit code."""
    try:
        work(GatewayApi(gateway, token))
    except ApiProblem as problem:
        if as_json:
            print(json.dumps({"error": str(problem), "exit_code": int(problem.code)}, ensure_ascii=False))
        else:
            say.note(str(problem))
        raise typer.Exit(problem.code) from None


def print_rows(rows: list[Any], as_json: bool, nothing: str, show: Callable[[list[Any]], None]) -> None:
    """A list for a script, one object a line, or for a person, who is told so when it is empty."""
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif not rows:
        say.note(nothing)
    else:
        show(rows)


def whole_id(known: list[str], given: str, what: str) -> str:
    """The one id that begins or ends with what was given; `what` names the things in plural, such as "questions"."""
    found = [one for one in known if one.startswith(given) or one.endswith(given)]
    if len(found) != 1:
        text = f"No {what.removesuffix('s')} has" if not found else f"{len(found)} {what} have"
        raise ApiProblem(ExitCode.NOT_FOUND, f"{text} an id that begins or ends with {given!r}.")
    return found[0]
