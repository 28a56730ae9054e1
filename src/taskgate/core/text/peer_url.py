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
from urllib.parse import urlsplit

import msgspec

from taskgate.core.errors import UpstreamError
from taskgate.mcp.addresses import is_public

MAX_URL = 2048

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*")
_LOOPBACK_NAMES = ("localhost",)
# Scripts with letters that look like Latin ones.
_DECEPTIVE = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "CANADIAN")
# Letters of those scripts that cannot be distinguished from Latin ones: Cyrillic, Greek, Armenian.
_LOOKS_LATIN = frozenset("асԁеһіјӏорԛѕԝхуѵ" + "ονυ" + "օոս")


class UnsafeUrl(UpstreamError):
    """A URL that is not shown. The message has the reason and does not repeat the URL."""

    def __init__(self, problem: str) -> None:
        super().__init__("unsafe_url", f"The server sent a URL that cannot be used: {problem}.")


class ShownUrl(msgspec.Struct, frozen=True):
    """A URL that may be shown. `host` is the part to highlight, in its Unicode form."""

    url: str
    host: str
    ascii_host: str
    warnings: tuple[str, ...] = ()


def check_peer_url(url: str, *, allow_loopback: bool = False) -> ShownUrl:
    """Check a URL from a server. Raises UnsafeUrl."""
    if not url or len(url) > MAX_URL:
        raise UnsafeUrl(f"it must have 1 to {MAX_URL} characters")
    if any(c.isspace() or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") or c == "\\" for c in url):
        raise UnsafeUrl("it contains spaces, backslashes or invisible characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UnsafeUrl("it is not well formed") from None
    if parts.scheme not in ("https", "http") or not url[len(parts.scheme) :].startswith("://"):
        raise UnsafeUrl("only https is allowed")
    if "@" in parts.netloc:
        raise UnsafeUrl("it contains a user name or a password")
    if "[" in parts.netloc and ":" not in (host or ""):
        raise UnsafeUrl("it is not well formed")
    if not host or host.endswith(".."):
        raise UnsafeUrl("it has no host")
    shown, plain, warnings = _host(host.rstrip("."))
    if parts.scheme == "http" and not (allow_loopback and _is_loopback(plain)):
        raise UnsafeUrl("only https is allowed")
    if port is not None and port not in (443, 80):
        warnings += (f"The URL has the port {port}.",)
    return ShownUrl(url, shown, plain, warnings)


def _host(host: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the host in Unicode form, in ASCII form, and the warnings."""
    if ":" in host:
        return f"[{host}]", f"[{host}]", _address_warnings(_address(host))
    labels = host.split(".")
    if all(_NUMERIC_LABEL.fullmatch(label) for label in labels):
        # Only the plain dotted form is read in the same way by all programs.
        return host, host, _address_warnings(_address(host))
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        raise UnsafeUrl("its host is not a name")
    plain = ".".join(_ascii_label(label) for label in labels)
    shown = ".".join(_shown_label(label) for label in plain.split("."))
    if shown == plain:
        return plain, plain, ()
    return shown, plain, (f"The host has letters other than a-z; its ASCII form is {plain}.",)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        raise UnsafeUrl("its host is an unusual notation of an IP address") from None


def _address_warnings(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[str, ...]:
    warnings = ["The host is an IP address and not a name."]
    if not is_public(address):
        warnings.append("The URL leads to this machine or a private network.")
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
        raise UnsafeUrl("its host consists of letters that look like others")
    return shown


def _is_loopback(host: str) -> bool:
    if host in _LOOPBACK_NAMES or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
