"""A small synchronous client for the HTTP API of a gateway, on the standard library.

Commands authenticate as the operator or with `--token`. The operator's token is sent to loopback addresses only.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from taskgate.cli import printing
from taskgate.cli.command_line import Exit
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.local_gateways import SeveralGateways, default_gateway, operator_token

R = TypeVar("R")
TIMEOUT_S = 30
READINESS_WITHIN_S = 5


class ApiProblem(Exception):
    """A failed API request, with its exit code."""

    def __init__(self, code: ExitCode, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.code, self.status = code, status


class Reply:
    """The value of a successful reply, and where the next page begins if that is in a header."""

    def __init__(self, value: Any, next_after: str | None) -> None:
        self.value = value
        self.next_after = next_after


_EXITS = {
    400: ExitCode.USAGE,
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.REFUSED,
    410: ExitCode.REFUSED,
    429: ExitCode.CANNOT_CONNECT,
    503: ExitCode.CANNOT_CONNECT,
}


_BAD_TOKEN = "The gateway does not accept this token."
_NO_TOKEN = (
    "Authentication required: use --token or $TASKGATE_TOKEN, or run this command as the user who runs the gateway."
)


class GatewayApi:
    def __init__(self, gateway: str | None, token: str | None) -> None:
        try:
            self._address = gateway or os.environ.get("TASKGATE_URL") or default_gateway()
        except SeveralGateways as problem:
            raise ApiProblem(ExitCode.USAGE, str(problem)) from None
        parts = urlsplit(self._address if "://" in self._address else f"http://{self._address}")
        if parts.hostname is None or parts.scheme not in ("http", "https"):
            raise ApiProblem(
                ExitCode.USAGE, f"{self._address} is not a valid address. Write for example http://127.0.0.1:7467."
            )
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        own = token or os.environ.get("TASKGATE_TOKEN")
        self._has_own_token = bool(own)
        self._token = own or operator_token(self._host)

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
            text = f"Cannot connect to a gateway at {self._address} ({problem}). Start one with: taskgate serve"
            raise ApiProblem(ExitCode.CANNOT_CONNECT, text) from None
        finally:
            connection.close()
        return self._read(raw, status, after)

    def _read(self, raw: bytes, status: int, after: str | None) -> Reply:
        try:
            value = json.loads(raw) if raw else {}
        except ValueError:
            raise ApiProblem(ExitCode.CANNOT_CONNECT, f"{self._address} is not a Taskgate gateway.") from None
        if status >= 400:
            body = value if isinstance(value, dict) else {}
            text = body.get("message") or body.get("error") or f"The gateway returned HTTP {status}."
            if status == 401:
                text = _BAD_TOKEN if self._has_own_token else _NO_TOKEN
            raise ApiProblem(_EXITS.get(status, ExitCode.FAILED), printing.clean(text), status)
        return Reply(value, after)


def readiness(url: str) -> dict[str, Any]:
    """Return what a gateway answers at `/ready`; empty if it cannot be reached in this way."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return {}
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=READINESS_WITHIN_S)
    token = os.environ.get("TASKGATE_TOKEN") or operator_token(parts.hostname)
    try:
        # Without a token the reply may omit why the store is unavailable.
        connection.request("GET", "/ready", headers={"Authorization": f"Bearer {token}"} if token else {})
        value = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return value if isinstance(value, dict) else {}


def run_with_gateway(work: Callable[[GatewayApi], None], gateway: str | None, token: str | None, as_json: bool) -> None:
    """Run one command against a gateway. Print an ApiProblem and exit with its code."""
    try:
        work(GatewayApi(gateway, token))
    except ApiProblem as problem:
        if as_json:
            print(json.dumps({"error": str(problem), "exit_code": int(problem.code)}, ensure_ascii=False))
        else:
            printing.note(str(problem))
        raise Exit(problem.code) from None


def print_rows(rows: list[Any], kind: type[R], as_json: bool, nothing: str, show: Callable[[list[R]], None]) -> None:
    """Print rows as one JSON object per line, or as records with `show`; print `nothing` if there are none."""
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif not rows:
        printing.note(nothing)
    else:
        show([read(row, kind) for row in rows])


def read(value: Any, kind: type[R]) -> R:
    """The value of a reply as a record of `replies`. JSON is printed as it was received."""
    # Imported here: a command that prints JSON does not need it, and it takes longer than everything else that a command imports.
    import msgspec

    from taskgate.mcp.json_errors import UNDECODABLE

    try:
        return msgspec.convert(value, kind)
    except UNDECODABLE as problem:
        text = (
            f"The gateway is of another version: its reply is not as expected ({problem}). --json prints it as it is."
        )
        raise ApiProblem(ExitCode.FAILED, text) from None


def whole_id(known: list[str], given: str, what: str) -> str:
    """Return the only id that begins or ends with `given`. `what` is the plural for the message, such as "questions"."""
    found = [one for one in known if one.startswith(given) or one.endswith(given)]
    if len(found) != 1:
        text = f"No {what.removesuffix('s')} has" if not found else f"{len(found)} {what} have"
        raise ApiProblem(ExitCode.NOT_FOUND, f"{text} an id that begins or ends with {given!r}.")
    return found[0]
