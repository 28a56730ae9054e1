"""The normal form of a resource URI, to which rules and lists are applied. The URI that is sent is never rewritten.

Many spellings name one resource: `FILE://localhost/a/%62/../c`, `file:/a/c` and `file:///a/c`. The normal form has scheme and host
in lower case, IP addresses in the usual notation, no default port, no user, no empty or local authority before a file path, no
percent-encoding (however often it was applied), no dot segments, and no repeated or backward slashes. A lenient server may read a
URI as its normal form, so the normal form is used for decisions only.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

MAX_URI: Final = 8192
MAX_HOST: Final = 255

_ROUNDS: Final = 8
_UNSEEN: Final = dict.fromkeys([*range(0x20), 0x7F])
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_WEB: Final = frozenset({"http", "https", "ws", "wss"})
_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "ssh": "22", "sftp": "22"}
_LOCAL: Final = frozenset({"", "localhost", "127.0.0.1", "[::1]", "."})
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+")
_ENCODED_GLOB: Final = re.compile(r"%(?:2[Aa]|3[Ff]|5[Bb])")


@lru_cache(maxsize=8192)
def normal_form(uri: str) -> str:
    """Return the form of a URI that rules are applied to. Every string has one, and the function is idempotent."""
    text = _cleaned(uri)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _decoded(text)
    name = scheme.group(1).lower()
    authority, path, tail = _split(scheme, text)
    if authority is None:
        return f"{name}:{_resolved(path).removeprefix('/')}{_decoded(tail)}"
    return f"{name}://{_host(name, authority)}{_resolved(path)}{_decoded(tail)}"


def is_ambiguous(uri: str) -> bool:
    """Whether two programs could read this URI as different resources, so that no rule can be applied to it.

    Too long, encoded repeatedly, with dot segments after a `?` or `#` (part of the path for programs that only strip `file://`),
    or a web URL without a host after two slashes, which browsers resolve differently.
    """
    text = _cleaned(uri)
    scheme = _SCHEME.match(text)
    authority, _, tail = _split(scheme, text) if scheme is not None else (None, "", text)
    web = scheme is not None and scheme.group(1).lower() in _WEB
    dotted = ".." in _decoded(tail).replace("\\", "/").split("/")
    unclear = not authority if web else dotted
    return len(uri) > MAX_URI or _decoded(text) != _decoded(_decoded(text)) or unclear


def on_this_host(uri: str) -> str | None:
    """Return the normal form of a file on another host as programs read it that use the path only; None if there is no
    such host.
    """
    scheme, _, rest = normal_form(uri).partition("://")
    host, slash, path = rest.partition("/")
    return f"file:///{path}" if scheme == "file" and host and slash else None


def normal_glob(glob: str) -> str:
    """Return a glob over URIs in the same form: `FILE://localhost/a%20b/*` matches what `file:///a b/*` does.

    Only whole segments before the first wildcard are resolved; the rest of the glob is only decoded. An encoded `*`,
    `?` or `[` is the literal character.
    """
    text = _ENCODED_GLOB.sub(lambda found: f"[{unquote(found.group())}]", glob)
    wildcard = re.search(r"[*?\[]", text)
    if wildcard is None:
        return normal_form(text)
    head, rest = text[: wildcard.start()], _decoded(text[wildcard.start() :])
    scheme = _SCHEME.match(head)
    authority, path, _ = _split(scheme, head) if scheme is not None else (None, "", "")
    if scheme is None or authority is None:
        return (head if scheme is None else scheme.group().lower() + _decoded(head[scheme.end() :])) + rest
    if not path:  # the wildcard is in the host
        return head.lower() + rest
    whole, slash, partial = head.rpartition("/")
    return normal_form(whole + slash) + _decoded(partial) + rest


def _cleaned(uri: str) -> str:
    return uri[:MAX_URI].translate(_UNSEEN).strip()


def _decoded(text: str) -> str:
    """Remove percent-encoding, also if it was applied more than once."""
    for _ in range(_ROUNDS):
        plain = unquote(text, errors="replace").translate(_UNSEEN) if "%" in text else text
        if plain == text:
            break
        text = plain
    return text


def _split(scheme: re.Match[str], uri: str) -> tuple[str | None, str, str]:
    """Return authority (None without a hierarchy; a file always has one), path, and what follows the path."""
    rest = uri[scheme.end() :]
    end = re.search(r"[?#]", rest)
    before, tail = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
    before = before.replace("\\", "/")
    if before.startswith("//"):
        authority, slash, path = before[2:].partition("/")
        return authority, slash + path, tail
    hierarchy = before.startswith("/") or scheme.group(1).lower() == "file"
    return ("" if hierarchy else None), before, tail


def _host(scheme: str, authority: str) -> str:
    host = _decoded(authority).rpartition("@")[2].lower()
    name, _, port = host.rpartition(":")
    if name and not name.endswith(":") and (not port or port.isdecimal()):
        host, port = name, port.lstrip("0")
    else:
        port = ""
    host = _address(host.rstrip("."))
    if scheme == "file":
        return "" if host in _LOCAL else host
    return host if port in ("", _PORTS.get(scheme)) else f"{host}:{port}"


def _address(host: str) -> str:
    """Return an IP address in the usual notation: `0x7f.1` and `[::ffff:7f00:1]` are 127.0.0.1. A name is returned
    unchanged.
    """
    if host.startswith("["):
        try:
            address = ipaddress.IPv6Address(host.strip("[]"))
        except ValueError:
            return host
        return str(address.ipv4_mapped) if address.ipv4_mapped is not None else f"[{address}]"
    parts = host.split(".")
    if len(parts) > 4 or len(host) > MAX_HOST or not all(map(_NUMBER.fullmatch, parts)):
        return host
    try:
        numbers = [_number(part) for part in parts]
        whole = sum(number << 8 * (3 - at) for at, number in enumerate(numbers[:-1])) + numbers[-1]
        return str(ipaddress.IPv4Address(whole)) if max(numbers[:-1], default=0) < 256 else host
    except ValueError:
        return host


def _number(part: str) -> int:
    """Parse as C's `inet_aton` does: hexadecimal after 0x, octal after 0."""
    if part.startswith("0x"):
        return int(part, 16) if len(part) > 2 else 0
    return int(part, 8 if part.startswith("0") else 10)


def _resolved(path: str) -> str:
    """Decode, and remove `.`, `..` and empty segments; a trailing slash is kept."""
    kept: list[str] = []
    parts = _decoded(path).replace("\\", "/").split("/")
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    slash = "/" if kept and parts[-1] in ("", ".", "..") else ""
    return f"/{'/'.join(kept)}{slash}"
