"""Secrets that were sent to a server, and their removal from what the server returns about failures.

A server that fails may quote the request: the header `Authorization`, an environment variable, a command-line argument.
`configured_secrets` and `header_secrets` list the secrets among what was sent; `SentSecrets` removes them from text and
from JSON, also if they were encoded: escaped in JSON, HTML or a URL, or within base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

import msgspec

from taskgate.core.redaction.fields import HIDDEN
from taskgate.core.redaction.looks_secret import looks_secret
from taskgate.core.redaction.secret_values import has_secret_name
from taskgate.core.text.plain_text import html_escaped

SHORTEST: Final = 12
"""Shorter values are kept: inside a text they cannot be distinguished from ordinary words."""
BEGINNING: Final = 24
"""Servers truncate what they quote, so this much of the beginning of a longer secret is removed as well."""
_STEP_BYTES: Final = 64 * 1024

# Characters that no usual encoding changes.
_PLAIN_RUN: Final = re.compile(r"[A-Za-z0-9_.-]+")
_JSON_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
_read_string = msgspec.json.Decoder(str).decode
_write_string = msgspec.json.Encoder().encode


def _escaped_as(characters: str, form: str) -> Callable[[str], str]:
    table = {ord(character): form.format(ord(character)) for character in characters}
    return lambda text: text.translate(table)


# How servers embed a text in another: unchanged, in JSON (Python, PHP, .NET, Gson and Go each escape other characters),
# in a URL, in HTML. Each works per character, so the beginning of a secret becomes the beginning of its encoded form.
_ENCODINGS: Final[tuple[Callable[[str], str], ...]] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    _escaped_as("+&<>'\"`", "\\u{:04X}"),
    _escaped_as("=&<>'", "\\u{:04x}"),
    _escaped_as("&<>", "\\u{:04x}"),
    lambda text: quote(text, safe=""),
    lambda text: quote(text, safe="/"),
    lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    quote_plus,
    html_escaped,
)


class _Needle(msgspec.Struct, frozen=True):
    """One secret in all its forms. A text without `mark` contains none of them."""

    mark: str
    forms: Mapping[str, frozenset[str]]
    """The complete forms, by the beginning that identifies them."""

    @classmethod
    def of(cls, secret: str) -> _Needle:
        beginning = secret[: _distinctive_length(secret)]
        forms: dict[str, frozenset[str]] = {}
        for encoded in _ENCODINGS:
            begin = encoded(beginning)
            forms[begin] = forms.get(begin, frozenset()) | {encoded(secret)}
        mark = max(_PLAIN_RUN.findall(beginning[-BEGINNING:]), key=len, default="")
        return cls(mark, forms)

    def removed(self, text: str) -> str:
        if self.mark in text:
            for beginning, wholes in self.forms.items():
                text = _without(text, beginning, wholes)
        return text


class SentSecrets:
    """Removes secrets. Those shorter than `SHORTEST` are ignored."""

    __slots__ = ("_needles",)

    def __init__(self, secrets: Iterable[str], *, within_base64: bool = False) -> None:
        """`within_base64`: also remove them from base64 texts that they are a part of, such as basic credentials."""
        found = {secret for secret in secrets if len(secret) >= SHORTEST}
        if within_base64:
            found |= {form for secret in found for form in _base64_forms(secret)}
        # Longest first, so that removing a secret that is part of another does not leave the rest of the longer one.
        self._needles = tuple(map(_Needle.of, sorted(found, key=lambda secret: (-len(secret), secret))))

    def __bool__(self) -> bool:
        return bool(self._needles)

    def in_text(self, text: str) -> str:
        """Return the text without the secrets."""
        for needle in self._needles:
            text = needle.removed(text)
        return text

    def in_json(self, document: bytes) -> bytes:
        """Return a JSON document whose strings hold no secret. Every other byte stays as it is."""
        steps = self.steps_in_json(document)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return bytes(done.value)

    def steps_in_json(self, document: bytes) -> Generator[None, None, bytes]:
        """The same in steps of a few milliseconds, for documents of many megabytes."""
        found: list[_Needle] = []
        for needle in self._needles:
            if needle.mark.encode() in document:
                found.append(needle)
            if len(document) > _STEP_BYTES:
                yield
        if not found:
            return document
        marks = [needle.mark.encode() for needle in found]
        parts, copied, pause_at = [], 0, _STEP_BYTES
        for string in _JSON_STRING.finditer(document):
            if any(mark in string[0] for mark in marks):
                before = after = _read_string(string[0])
                for needle in found:
                    after = needle.removed(after)
                if after != before:
                    parts += [document[copied : string.start()], _write_string(after)]
                    copied = string.end()
            if string.end() > pause_at:
                pause_at = string.end() + _STEP_BYTES
                yield
        parts.append(document[copied:])
        return b"".join(parts)


def _distinctive_length(secret: str) -> int:
    """Length of the prefix that identifies a secret. The first part of a JSON web token is the same for all tokens of
    an issuer.
    """
    header, dot, _ = secret.partition(".")
    return len(header) + 1 + BEGINNING if dot and header.startswith("eyJ") else BEGINNING


def _without(text: str, beginning: str, wholes: Iterable[str]) -> str:
    at = text.find(beginning)
    if at < 0:
        return text
    parts, copied = [], 0
    while at >= 0:
        parts += [text[copied:at], HIDDEN]
        copied = at + max(_common(text, at, len(beginning), whole) for whole in wholes)
        at = text.find(beginning, copied)
    parts.append(text[copied:])
    return "".join(parts)


def _common(text: str, at: int, minimum: int, whole: str) -> int:
    """Length of the prefix of `whole` at this offset of the text, which is at least `minimum`."""
    low, high = minimum, len(whole)
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(whole[:middle], at):
            low = middle
        else:
            high = middle - 1
    return low


def _base64_forms(secret: str) -> Iterator[str]:
    """The base64 forms of a secret for each alignment, without the characters that depend on its neighbours."""
    data = secret.encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        whole = encoded[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        yield whole
        yield whole.translate(_URL_SAFE)


_URL_SAFE: Final = {ord("+"): "-", ord("/"): "_"}


_PLAIN_HEADERS: Final = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "content-type", "date", "from"}
    | {"host", "origin", "pragma", "prefer", "referer", "user-agent", "x-request-id"}
)
_PATH: Final = re.compile(r"(~|\.{0,2}/|[A-Za-z]:[\\/])")
_FLAG: Final = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_HEADER: Final = re.compile(r"([A-Za-z][\w-]*)\s*:\s*(.+)", re.DOTALL)


def header_secrets(name: str, value: str) -> Iterator[str]:
    """Return the secrets in a header: its value, or the credentials in it. Headers that never grant access have none."""
    folded = name.lower()
    if folded in _PLAIN_HEADERS:
        return
    scheme, _, credential = value.partition(" ")
    if "authorization" not in folded or not credential:
        yield value
    else:
        # Without the scheme: `Bearer` and a word are part of many messages.
        yield credential.strip()
        if scheme.lower() == "basic":
            yield from _basic_credentials(credential.strip())
    if "cookie" in folded:
        yield from (part.partition("=")[2].strip() for part in value.split(";"))


def _basic_credentials(encoded: str) -> Iterator[str]:
    try:
        pair = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError):
        return
    yield pair
    yield pair.partition(":")[2]


def configured_secrets(
    *, url: str, headers: Mapping[str, str], env: Mapping[str, str], args: Iterable[str], referenced: Collection[str]
) -> frozenset[str]:
    """Return the secrets in the configuration of a server. `referenced`: values from references (`${...}`)."""
    found: set[str] = set()
    for name, value in headers.items():
        found.update(header_secrets(name, value))
    for name, value in env.items():
        if _is_secret(name, value):
            found.update(_parts(value))
    for name, value in _named_values(url, args):
        found.update(header_secrets(name, value) if name.lower() == "authorization" else ())
        if _is_secret(name, value):
            found.update(_parts(value))
    places = (url, *headers.values(), *env.values(), *args)
    known = (value for value in referenced if not _PATH.match(value) and any(value in place for place in places))
    found.update(part for value in known for part in _parts(value))
    found.update(password for place in places for password in _passwords(place))
    return frozenset(secret for secret in found if len(secret) >= SHORTEST)


def _is_secret(name: str, value: str) -> bool:
    return has_secret_name(name) or (looks_secret(name, value) and not _PATH.match(value))


def _parts(value: str) -> Iterator[str]:
    """A key of several lines is often quoted line by line."""
    yield value
    if "\n" in value:
        yield from (line.strip() for line in value.splitlines())


def _passwords(place: str) -> Iterator[str]:
    """The name and password in a URL such as postgresql://name:password@host."""
    for found in re.finditer(r"://([^/\s@]*:([^/\s@]+))@", place):
        yield from found.groups()


def _named_values(url: str, args: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The query parameters of a URL and the arguments of a program, each with its name if it has one."""
    try:
        yield from parse_qsl(urlsplit(url).query)
    except ValueError:
        return
    name = ""
    for arg in args:
        flag, header = _FLAG.fullmatch(arg), _HEADER.fullmatch(arg)
        if flag is not None:
            name = flag[1] if flag[2] is None else ""
            if flag[2] is not None:
                yield flag[1], flag[2]
            continue
        if header is not None:
            yield header[1], header[2]
        yield name, arg
        name = ""
