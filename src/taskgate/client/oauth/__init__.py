"""OAuth login for servers that require it: `connect(url, auth=OAuth(...))`.

OAuth 2.1 as specified by MCP: the client discovers the authorization server, registers there, the user consents in a browser, and
the client receives tokens for this server. Not needed for servers with a fixed token.
"""

from taskgate.client.oauth.browser import browser_login
from taskgate.client.oauth.login import OAuth

__all__ = ["OAuth", "browser_login"]
