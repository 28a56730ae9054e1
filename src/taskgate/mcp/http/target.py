"""The URL of a request with its fixed headers, and the bytes of a request to it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROLS = bytes([*range(9), *range(10, 32), 127])
# The client frames messages and manages connections itself and does not decompress bodies.
_RESERVED_HEADERS = frozenset(
    {
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"expect",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_BODILESS = frozenset({b"GET", b"DELETE", b"OPTIONS"})


class Origin(NamedTuple):
    """The peer of a connection. Targets with the same origin share connections."""

    tls: bool
    host: str
    """A name, an address, or the path of a Unix socket."""
    port: int
    public_only: bool = False
    """Connect to public addresses only. Such connections are not shared with other origins."""


class Target:
    """A URL with its fixed headers."""

    __slots__ = ("_heads", "fixed", "origin", "path")

    def __init__(self, origin: Origin, path: bytes, fixed: bytes) -> None:
        self.origin = origin
        self.path = path
        self.fixed = fixed
        self._heads: dict[bytes, bytes] = {}

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str] | None = None, *, public_only: bool = False) -> Target:
        """Parse a URL. Raises ValueError if it is not a plain http or https URL or if a header is invalid."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(
                f"an upstream address must begin with http:// or https://, not {parts.scheme or url[:12]!r}"
            )
        if parts.username is not None or parts.password is not None:
            raise ValueError("an upstream address must not hold a user name or password; set a header instead")
        if not parts.hostname:
            raise ValueError("an upstream address needs a host name")
        tls = parts.scheme == "https"
        host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode("ascii")
        port = parts.port or (443 if tls else 80)
        origin = Origin(tls, host, port, public_only)
        return cls(origin, _render_path(parts), _render_fixed(host, port, tls, headers or {}))

    def at(self, url: str) -> Target:
        """Return a target with the same fixed headers for an absolute or relative URL of the same origin."""
        parts = urllib.parse.urlsplit(url)
        base = f"{'https' if self.origin.tls else 'http'}://{_bracket(self.origin.host)}:{self.origin.port}"
        whole = urllib.parse.urljoin(base + self.path.decode("ascii"), url)
        other = Target.parse(whole, public_only=self.origin.public_only)
        if (parts.netloc or parts.scheme) and other.origin != self.origin:
            raise ValueError("the other address has another origin")
        return Target(self.origin, other.path, self.fixed)

    def render(self, method: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
        """Return the bytes of the request."""
        head = self._heads.get(method)
        if head is None:
            head = self._render_head(method)
        varying = _render_headers(headers if type(headers) is tuple else tuple(headers)) if headers else b""
        if body or method not in _BODILESS:
            return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, varying, len(body), body)
        return b"%b%b\r\n" % (head, varying)

    def post_head(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the head of a POST request up to the value of its Content-Length."""
        return b"%b%bContent-Length: " % (
            self._heads.get(b"POST") or self._render_head(b"POST"),
            _render_headers(tuple(headers)),
        )

    def _render_head(self, method: bytes) -> bytes:
        if not method.isalpha() or method in (b"HEAD", b"CONNECT"):
            raise ValueError(f"the method {method!r} cannot be used here")
        head = self._heads[method] = b"%b %b HTTP/1.1\r\n%b" % (method, self.path, self.fixed)
        return head


class PreparedTarget(Target):
    """A target whose request is already rendered."""

    __slots__ = ()

    def __init__(self, origin: Origin, request: bytes) -> None:
        super().__init__(origin, b"", request)

    def render(self, method: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
        return self.fixed


def check_header(name: bytes, value: bytes) -> None:
    """Raise ValueError for a name that is not a token or a value with control characters, which would break the framing."""
    if not name or name.translate(None, _TOKEN):
        raise ValueError(f"{name!r} is not a header name")
    if len(value.translate(None, _CONTROLS)) != len(value):
        raise ValueError(f"the value of header {name.decode('ascii')} holds a control character")


@lru_cache(maxsize=512)
def _render_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Validate and join headers. Cached, because most calls to an upstream have the same headers."""
    for name, value in headers:
        check_header(name, value)
    return b"".join(b"%b: %b\r\n" % header for header in headers)


def _render_path(parts: urllib.parse.SplitResult) -> bytes:
    path = urllib.parse.quote(parts.path or "/", safe=_PATH_SAFE)
    if parts.query:
        path += "?" + urllib.parse.quote(parts.query, safe=_PATH_SAFE + "?")
    return path.encode("ascii")


def _render_fixed(host: str, port: int, tls: bool, headers: Mapping[str, str]) -> bytes:
    rendered: dict[bytes, bytes] = {}
    for name, value in headers.items():
        raw_name, raw_value = name.encode("latin-1", "replace"), value.strip().encode("utf-8")
        check_header(raw_name, raw_value)
        if raw_name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the header {name} is set by Taskgate itself")
        if raw_name.lower() in rendered:
            raise ValueError(f"the header {name} is given twice")
        rendered[raw_name.lower()] = b"%b: %b\r\n" % (raw_name, raw_value)
    authority = _bracket(host) if port == (443 if tls else 80) else f"{_bracket(host)}:{port}"
    own = rendered.pop(b"host", b"Host: %b\r\n" % authority.encode("ascii"))
    agent = rendered.pop(b"user-agent", b"User-Agent: taskgate\r\n")
    return own + agent + b"".join(rendered.values())


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
