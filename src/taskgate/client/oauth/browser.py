"""Log in with a browser on this machine: open the page and wait for the redirect to a local port.

The local server accepts one request and closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import webbrowser
from collections.abc import Callable, MutableMapping
from typing import Any

from taskgate.client.errors import LoginFailed
from taskgate.client.oauth.login import OAuth

LOGIN_SECONDS = 300.0
_PAGE = b"<!doctype html><title>Logged in</title><p>Login complete. You can close this window."


def browser_login(
    *,
    port: int = 0,
    show: Callable[[str], Any] = webbrowser.open,
    storage: MutableMapping[str, Any] | None = None,
    **identity: Any,
) -> OAuth:
    """Return an `OAuth` that uses the user's browser. `show` opens an address; `identity` are arguments of `OAuth`."""
    listener = socket.create_server(("127.0.0.1", port))
    redirect = f"http://127.0.0.1:{listener.getsockname()[1]}/callback"

    async def visit(address: str) -> str:
        redirected: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode("ascii", "replace")
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % len(_PAGE) + _PAGE)
                if path.startswith("/callback") and not redirected.done():
                    redirected.set_result(redirect.removesuffix("/callback") + path)
            writer.close()

        server = await asyncio.start_server(serve, sock=listener.dup())
        try:
            show(address)
            async with asyncio.timeout(LOGIN_SECONDS):
                return await redirected
        except TimeoutError as error:
            raise LoginFailed("login timed out after 5 minutes") from error
        finally:
            server.close()

    return OAuth(visit, redirect, storage=storage, **identity)
