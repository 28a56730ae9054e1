"""URIs of resources: one normal form to judge them by, and the templates (RFC 6570) they may be made from."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar
from urllib.parse import unquote

# One normal form of a resource's URI, under which rules and lists judge it. What is sent is never rewritten.
#
# Many spellings name one resource: `FILE://localhost/a/%62/../c`, `file:/a/c` and `file:///a/c`. The normal form has
# scheme and host in small letters, addresses in the usual notation, no default port, no user, no empty or local authority
# in front of a file, no percent-encoding (however often it was applied), no dot segments and no doubled or backward
# slashes. It says what a lenient server makes of a URI, so it is for judging only.

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
    """The form under which a URI is judged. Every string has one, and a normal form is its own."""
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
    """Whether two programs could take this URI for different resources, so that no rule can judge it.

    Too long, encoded over and over, with dot segments behind a `?` or `#`, which are part of the path for programs that
    only cut off `file://`, or a web address without a host behind two slashes, which browsers look for elsewhere.
    """
    text = _cleaned(uri)
    scheme = _SCHEME.match(text)
    authority, _, tail = _split(scheme, text) if scheme is not None else (None, "", text)
    web = scheme is not None and scheme.group(1).lower() in _WEB
    dotted = ".." in _decoded(tail).replace("\\", "/").split("/")
    unclear = not authority if web else dotted
    return len(uri) > MAX_URI or _decoded(text) != _decoded(_decoded(text)) or unclear


def on_this_host(uri: str) -> str | None:
    """The normal form of a file of another host for programs that look at its path alone; None if there is no such host."""
    scheme, _, rest = normal_form(uri).partition("://")
    host, slash, path = rest.partition("/")
    return f"file:///{path}" if scheme == "file" and host and slash else None


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
    authority, path, _ = _split(scheme, head) if scheme is not None else (None, "", "")
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


def _split(scheme: re.Match[str], uri: str) -> tuple[str | None, str, str]:
    """Authority (None where there is no hierarchy; a file always has one), path, and what follows the path."""
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
    """An address as it is usually written: `0x7f.1` and `[::ffff:7f00:1]` are 127.0.0.1. A name stays as it is."""
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
    """As C's `inet_aton` reads it: hexadecimal behind 0x, octal behind 0."""
    if part.startswith("0x"):
        return int(part, 16) if len(part) > 2 else 0
    return int(part, 8 if part.startswith("0") else 10)


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


# URI templates (RFC 6570) of upstreams: may a URI have been made from one, and what stood in one of its variables?
#
# A template is literals and variables in turn. All ways to divide a URI among them are followed at once, as sets of
# places kept in the bits of an integer, so the cost is the template's length times a few machine words however many
# variables there are; a regular expression would try the ways one after the other, and there can be more of them than
# there is time. Expansion and percent-encoding are not checked: a match says "may be".

MAX_TEMPLATE: Final = 4096
MAX_EFFORT: Final = 100_000
"""Characters of templates that one search compares, more of them where the URI is long; beyond it no template fits."""
MAX_SUGGESTING: Final = 25_000
"""The same for a list of suggestions, which divides each URI among the variables in both directions."""

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
_ACROSS_SEGMENTS: Final = frozenset("+#/?&;")
_Owner = TypeVar("_Owner")


@dataclass(frozen=True, slots=True)
class _Variables:
    """One expression in braces. A plain one does not reach over a slash."""

    names: tuple[str, ...]
    across: bool


class PreparedUri:
    """A URI prepared for being compared with many templates."""

    __slots__ = ("_mirrored", "_places", "end", "not_slash", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.end = 1 << len(uri)
        self._places: dict[str, int] = {}
        for at, character in enumerate(uri):
            self._places[character] = self._places.get(character, 0) | 1 << at
        self.not_slash = (self.end - 1) & ~self._places.get("/", 0)
        self._mirrored = -1

    def flooded_down(self, places: int) -> int:
        """These places and those before them from which no slash is in the way."""
        # Bits are mirrored, so that the carry of the flood upwards runs the other way.
        size = self.end.bit_length()
        if self._mirrored < 0:
            self._mirrored = _mirrored(self.not_slash << 1, size)
        free, seen = self._mirrored, _mirrored(places, size)
        return _mirrored((((seen & free) + free) ^ free) | seen, size)

    def flooded_up(self, places: int) -> int:
        """These places and those behind them to which no slash is in the way."""
        # A run of ones is flooded from a place in it to the zero behind it by the carry of one addition.
        return (((places & self.not_slash) + self.not_slash) ^ self.not_slash) | places

    def occurrences(self, literal: str) -> int:
        """The places at which a literal begins."""
        found = (self.end << 1) - 1
        for at, character in enumerate(literal):
            found &= self._places.get(character, 0) >> at
            if not found:
                break
        return found


class UriTemplate:
    """One template, read once. One that is too long to be compared matches only itself."""

    __slots__ = ("_tokens", "head", "tail", "template")

    def __init__(self, template: str) -> None:
        self.template = template
        tokens: list[str | _Variables] = []
        at = 0
        for found in _EXPRESSION.finditer(template) if len(template) <= MAX_TEMPLATE else ():
            tokens.append(template[at : found.start()])
            names = tuple(part.partition(":")[0].rstrip("*") for part in found.group(2).split(","))
            tokens.append(_Variables(names, found.group(1) in _ACROSS_SEGMENTS))
            at = found.end()
        tokens.append(template[at:])
        self._tokens = tuple(tokens)
        self.head, self.tail = str(tokens[0]), str(tokens[-1])

    def effort(self, uri: str) -> int:
        """What a comparison costs, in characters of a template beside a short URI."""
        return len(self.template) * (1 + len(uri) // 1024)

    def matches(self, text: PreparedUri) -> bool:
        """Whether the URI may have been made from this template."""
        return bool(self._forwards(text)[-1] & text.end)

    def value_of(self, variable: str, text: PreparedUri) -> str | None:
        """What stands in the place of a variable; None if the URI does not fit or the variable is not there."""
        at = next((i for i, t in enumerate(self._tokens) if isinstance(t, _Variables) and variable in t.names), None)
        forwards = self._forwards(text)
        if at is None or not forwards[-1] & text.end:
            return None
        backwards = self._backwards(text)
        # The variables before take as much as they can, as readers of a path expect.
        start = (forwards[at] & backwards[at]).bit_length() - 1
        ends = _through(self._tokens[at], text, 1 << start) & backwards[at + 1]
        return text.uri[start : ends.bit_length() - 1]

    def values_in(self, variable: str, uris: Iterable[str]) -> Iterator[str]:
        """What stands in the place of a variable in each of many URIs, within a bounded effort."""
        if not any(isinstance(token, _Variables) and variable in token.names for token in self._tokens):
            return
        alone = self._tokens[1] if len(self._tokens) == 3 else None
        least, effort = len(self.head) + len(self.tail), 0
        for uri in uris:
            if not uri.startswith(self.head) or not uri.endswith(self.tail) or len(uri) < least or len(uri) > MAX_URI:
                continue
            if isinstance(alone, _Variables):
                value = uri[len(self.head) : len(uri) - len(self.tail)]
                if alone.across or "/" not in value:
                    yield value
                continue
            effort += self.effort(uri) + len(uri)
            if effort > MAX_SUGGESTING:
                return
            found = self.value_of(variable, PreparedUri(uri))
            if found is not None:
                yield found

    def _forwards(self, text: PreparedUri) -> list[int]:
        """For each token the places at which it may begin, and at last those at which the template may end."""
        places = [1]
        for token in self._tokens:
            places.append(_through(token, text, places[-1]))
        return places

    def _backwards(self, text: PreparedUri) -> list[int]:
        """For each token the places from which the rest of the template fits the rest of the URI."""
        places = [text.end]
        for token in reversed(self._tokens):
            after = places[-1]
            if isinstance(token, str):
                places.append((after >> len(token)) & text.occurrences(token))
            else:
                places.append(_before(token, text, after))
        return places[::-1]


def _through(token: str | _Variables, text: PreparedUri, places: int) -> int:
    """Where one may stand behind a token, having stood before it at any of these places."""
    if not places:
        return 0
    if isinstance(token, str):
        return (places & text.occurrences(token)) << len(token)
    if token.across:
        return (text.end << 1) - (places & -places)
    return text.flooded_up(places)


def _before(token: _Variables, text: PreparedUri, places: int) -> int:
    top = (1 << places.bit_length()) - 1
    return top if token.across else text.flooded_down(places) & top


def _mirrored(bits: int, size: int) -> int:
    return int(f"{bits:0{size}b}"[::-1][:size], 2)


def first_matching(templates: Iterable[tuple[UriTemplate, _Owner]], uri: str) -> _Owner | None:
    """The owner of the first template that the URI may have been made from, within a bounded effort."""
    if len(uri) > MAX_URI:
        return None
    text: PreparedUri | None = None
    effort = 0
    for template, owner in templates:
        if not uri.startswith(template.head) or not uri.endswith(template.tail):
            continue
        effort += template.effort(uri)
        if effort > MAX_EFFORT:
            return None
        text = text or PreparedUri(uri)
        if template.matches(text):
            return owner
    return None
