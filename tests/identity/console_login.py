"""A person at the console of a gateway in another process, by plain HTTP: logs in with a token and sends forms of its pages."""

from __future__ import annotations

import html
import re

import httpx2


async def log_in(browser: httpx2.AsyncClient, base: str, token: str) -> None:
    """The client keeps the cookie of the session."""
    reply = await press(browser, f"{base}/login", token=token)
    assert reply.status_code == 303, reply.text


async def press(browser: httpx2.AsyncClient, page: str, target: str = "", **values: str) -> httpx2.Response:
    """Open a page and send one of its forms, to another address if that is given."""
    opened = await browser.get(page)
    found = re.search(r'name="form_token" value="([^"]+)"', opened.text)
    assert found is not None, opened.text
    return await browser.post(target or page, data={**values, "form_token": found[1]})


def led_to(reply: httpx2.Response) -> str:
    """Where the login of a server is."""
    found = re.search(r'<a href="([^"]+)"', reply.text)
    assert found is not None, reply.text
    return html.unescape(found[1])
