"""Logging in to servers that want it: `connect(url, auth=OAuth(...))`.

OAuth 2.1 as MCP uses it: the server says where its authorization server is, the client introduces itself there,
the user agrees in a browser, and the client gets tokens for this one server. Nothing here is needed for servers
that take a fixed token.
"""

from taskgate.client.oauth.browser import browser_login
from taskgate.client.oauth.login import OAuth

__all__ = ["OAuth", "browser_login"]
