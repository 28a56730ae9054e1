"""One normal form of a resource's URI, under which rules and lists judge it. What is sent is never rewritten.

Many spellings name one resource: `FILE://localhost/a/%62/../c`, `file:/a/c` and `file:///a/c`. The normal form has
scheme and host in small letters, no default port, no empty or local authority in front of a file, no percent-encoding
(however often it was applied), no dot segments and no doubled or backward slashes. It says what a lenient server makes
of a URI, so it is for judging only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

MAX_URI: Final = 8192

_ROUNDS: Final = 8
_UNSEEN: Final = dict.fromkeys([*range(0x20), 0x7F])
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_WEB: Final = frozenset({"http", "https", "ws", "wss"})
_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "ssh": "22", "sftp": "22"}
_LOCAL: Final = frozenset({"", "localhost", "127.0.0.1", "[::1]", "."})
_ENCODED_GLOB: Final = re.compile(r"%(?:2[Aa]|3[Ff]|5[Bb])")


@lru_cache(maxsize=8192)
def normal_form(uri: str) -> str:
    """The form under which a URI is judged. Every string has one, and a normal form is its own."""
    text = _cleaned(uri)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _decoded(text)
    name, rest = scheme.group(1).lower(), text[scheme.end() :]
    authority, path, tail = _split(rest)
    if authority is None:
        return f"{name}:{_resolved(path).removeprefix('/')}{_decoded(tail)}"
    return f"{name}://{_host(name, authority)}{_resolved(path)}{_decoded(tail)}"


def is_ambiguous(uri: str) -> bool:
    """Whether two programs could take this URI for different resources, so that no rule can judge it.

    Too long, encoded over and over, or with dot segments behind a `?` or `#`, which are part of the path for programs
    that only cut off `file://`.
    """
    text = _cleaned(uri)
    scheme = _SCHEME.match(text)
    _, _, tail = _split(text[scheme.end() :]) if scheme is not None else (None, "", text)
    dotted = ".." in _decoded(tail).replace("\\", "/").split("/")
    web = scheme is not None and scheme.group(1).lower() in _WEB
    return len(uri) > MAX_URI or _decoded(text) != _decoded(_decoded(text)) or (dotted and not web)


def normal_glob(glob: str) -> str:
    """A glob over URIs in the same form: `FILE://localhost/a%20b/*` covers what `file:///a b/*` does.

    Only whole segments before the first wildcard are resolved; behind it the glob is decoded and nothing more. An
    encoded `*`, `?` or `[` is the character itself.
    """
    text = _ENCODED_GLOB.sub(lambda found: f"[{unquote(found.group())}]", glob)
    wild = re.search(r"[*?\[]", text)
    if wild is None:
        return normal_form(text)
    head, rest = text[: wild.start()], _decoded(text[wild.start() :])
    scheme = _SCHEME.match(head)
    authority, path, _ = _split(head[scheme.end() :]) if scheme is not None else (None, "", "")
    if scheme is None or authority is None:
        return (head if scheme is None else scheme.group().lower() + _decoded(head[scheme.end() :])) + rest
    if not path:  # the wildcard stands in the host
        return head.lower() + rest
    whole, slash, partial = head.rpartition("/")
    return normal_form(whole + slash) + _decoded(partial) + rest


def _cleaned(uri: str) -> str:
    return uri[:MAX_URI].translate(_UNSEEN).strip()


def _decoded(text: str) -> str:
    """Without percent-encoding, also where it was applied more than once."""
    for _ in range(_ROUNDS):
        plain = unquote(text, errors="replace").translate(_UNSEEN) if "%" in text else text
        if plain == text:
            break
        text = plain
    return text


def _split(rest: str) -> tuple[str | None, str, str]:
    """Authority (None where there is no hierarchy), path, and what follows the path."""
    end = re.search(r"[?#]", rest)
    before, tail = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
    before = before.replace("\\", "/")
    if before.startswith("//"):
        authority, slash, path = before[2:].partition("/")
        return authority, slash + path, tail
    return ("" if before.startswith("/") else None), before, tail


def _host(scheme: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    host = _decoded(host).lower()
    name, colon, port = host.rpartition(":")
    if colon and port in ("", _PORTS.get(scheme)) and not name.endswith(":"):
        host = name
    host = host.rstrip(".")
    if scheme == "file" and host in _LOCAL:
        return ""
    return f"{user}{at}{host}"


def _resolved(path: str) -> str:
    """Decoded, and without `.`, `..` and empty segments; a slash at the end stays."""
    kept: list[str] = []
    parts = _decoded(path).replace("\\", "/").split("/")
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    slash = "/" if kept and parts[-1] in ("", ".", "..") else ""
    return f"/{'/'.join(kept)}{slash}"
