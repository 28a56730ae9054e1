"""Whether a URL from a peer may be used, and what to warn about.

A URL that a server asks a person to open is shown and never fetched by the gateway. It must be https (or http to the
loopback interface if the operator allows that) and must not hide its host behind a user name and password, an unusual
notation of an IP address, or letters that look like others. Remaining doubts are shown as warnings. The URL of a server
that a caller adds is checked in the same way, and connections to it are limited to IP addresses that
`taskgate.mcp.addresses` permits. URLs from the operator's configuration are not checked here.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import urlsplit

from taskgate.core.errors import UpstreamError
from taskgate.mcp.addresses import is_public

# Whether an address that a peer gives may be used, and what to warn of.
#
# Addresses that a server wants a person to open are shown, and never fetched by us. Such a one must be https (plain
# http to this very machine if the operator allows it), must not hide its host behind a name and password, an odd way to
# write a number, or letters that look like others. What remains doubtful is shown with a warning. The address of a
# server that a caller adds is judged likewise, and is connected to only at numbers that `taskgate.mcp.addresses`
# passes. Only addresses that come from peers are judged here, never the operator's own.

MAX_URL = 2048

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*")
_LOOPBACK_NAMES = ("localhost",)
# Scripts whose letters pass for Latin ones.
_DECEPTIVE = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "CANADIAN")
# Of those scripts, letters that nobody can tell from Latin ones: Cyrillic, Greek, Armenian.
_LOOKS_LATIN = frozenset("асԁеһіјӏорԛѕԝхуѵ" + "ονυ" + "օոս")


class UnsafeUrl(UpstreamError):
    """An address that is not shown to anyone. The message says why, and does not repeat it."""

    def __init__(self, problem: str) -> None:
        super().__init__("unsafe_url", f"The server gave an address that cannot be used: {problem}.")


@dataclass(frozen=True, slots=True)
class ShownUrl:
    """An address fit to be shown. `host` is what to highlight, in the letters a person reads."""

    url: str
    host: str
    ascii_host: str
    warnings: tuple[str, ...] = ()


def check_peer_url(url: str, *, allow_loopback: bool = False) -> ShownUrl:
    """Judge an address from a server. Raises UnsafeUrl."""
    if not url or len(url) > MAX_URL:
        raise UnsafeUrl(f"it must have 1 to {MAX_URL} characters")
    if any(c.isspace() or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") or c == "\\" for c in url):
        raise UnsafeUrl("it holds spaces, backslashes or characters that cannot be seen")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UnsafeUrl("it is not well formed") from None
    if parts.scheme not in ("https", "http") or not url[len(parts.scheme) :].startswith("://"):
        raise UnsafeUrl("only https is allowed")
    if "@" in parts.netloc:
        raise UnsafeUrl("it holds a name or a password before the host")
    if "[" in parts.netloc and ":" not in (host or ""):
        raise UnsafeUrl("it is not well formed")
    if not host or host.endswith(".."):
        raise UnsafeUrl("it has no host")
    shown, plain, warnings = _host(host.rstrip("."))
    if parts.scheme == "http" and not (allow_loopback and _is_loopback(plain)):
        raise UnsafeUrl("only https is allowed")
    if port is not None and port not in (443, 80):
        warnings += (f"The address names the port {port}.",)
    return ShownUrl(url, shown, plain, warnings)


def _host(host: str) -> tuple[str, str, tuple[str, ...]]:
    """The host as people read it, as machines do, and what to warn of."""
    if ":" in host:
        return f"[{host}]", f"[{host}]", _address_warnings(_address(host))
    labels = host.split(".")
    if all(_NUMERIC_LABEL.fullmatch(label) for label in labels):
        # Only the plain dotted form is a number that everybody reads alike.
        return host, host, _address_warnings(_address(host))
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        raise UnsafeUrl("its host is not a name")
    plain = ".".join(_ascii_label(label) for label in labels)
    shown = ".".join(_shown_label(label) for label in plain.split("."))
    if shown == plain:
        return plain, plain, ()
    return shown, plain, (f"The host has letters beyond a-z; machines call it {plain}.",)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        raise UnsafeUrl("its host is an odd way to write a number") from None


def _address_warnings(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[str, ...]:
    warnings = ["The address has a number instead of a name."]
    if not is_public(address):
        warnings.append("The address leads into this machine or a private network.")
    return tuple(warnings)


def _ascii_label(label: str) -> str:
    try:
        plain = label if label.isascii() else label.encode("idna").decode("ascii")
    except UnicodeError:
        raise UnsafeUrl("its host is not a name") from None
    if not _LABEL.fullmatch(plain.lower()):
        raise UnsafeUrl("its host is not a name")
    return plain.lower()


def _shown_label(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    try:
        shown = label.encode("ascii").decode("idna")
    except UnicodeError:
        raise UnsafeUrl("its host is not a name") from None
    scripts = {unicodedata.name(c, "?").split()[0] for c in shown if c.isalpha()}
    deceptive = {script for script in scripts if script in _DECEPTIVE}
    if deceptive and len(scripts) > 1:
        raise UnsafeUrl("its host mixes letters that look alike")
    if deceptive and all(c in _LOOKS_LATIN for c in shown if c.isalpha()):
        raise UnsafeUrl("its host is written in letters that pass for others")
    return shown


def _is_loopback(host: str) -> bool:
    if host in _LOOPBACK_NAMES or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
