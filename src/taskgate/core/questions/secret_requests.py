"""Find forms that ask for a secret. Forms must not: secrets belong on a page of the server.

The message, the names, titles, descriptions and labels are searched for words of many languages (`secret_words`). Text is folded
first, so that letters that look alike, accents, invisible characters, spaces between letters, digits in the place of letters and
markup do not hide a word. What is found is a warning to the person who fills in the form; nothing is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from taskgate.core.questions.secret_words import CONCEPTS, NEUTRAL, NUMERIC_SECRETS, SECRETS, TOGETHER
from taskgate.core.text.lookalikes import CAPITALS, DRAWN_LIKE
from taskgate.core.text.plain_text import is_blank

MAX_SEARCHED: Final = 4 * 1024
"""Characters of a form that are searched. A form of this size takes some milliseconds."""
_SEARCH_COST: Final = 8
"""What the search of one field costs in addition, in characters."""
_TEXT_FORMATS: Final = ("date", "date-time", "time", "email", "uri")
"""Formats of texts that are no secrets."""
_HINTS: Final = re.compile(
    r"^\^?(sk-|ghp_|gho_|github_pat_|glpat-|xox|AKIA|AIza|eyJ)|-----BEGIN|\.aws[/\\]cred|\.netrc|\.npmrc|\.pgpass|"
    r"\([^()]*(?: |\\s)[^()]*\)\{(?:11|23)(?:,\d*)?\}|0x\[[^\]]*\]\{64\}|\bBEGIN\b[^\n]{0,20}\bEND\b|://[^\s/@:]{1,60}:[^\s/@]{1,60}@|"
    r"config view --raw|kubectl get secret|gh auth token|print-(?:access|identity)-token|git credential fill|"
    r"find-generic-password|\bprintenv\b"
)
"""Beginnings of keys, files of keys, patterns of twelve or more words, addresses with passwords, and commands that
print secrets."""
_MARKUP: Final = re.compile(r"</?[a-zA-Z][^<>]{0,60}>|[*`~\u0640]")
_REFERENCE: Final = re.compile(r"&#(x[0-9a-fA-F]{1,6}|[0-9]{1,7});")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DIVIDERS: Final = re.compile(r"[\W_]+")
_SINGLE: Final = re.compile(r"(?<!\w)\w(?: \w(?!\w)){2,}")
_WITHOUT_SPACES: Final = r"\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff"
_DENSE_GAP: Final = re.compile(f"(?<=[{_WITHOUT_SPACES}]) (?=[{_WITHOUT_SPACES}])")
_APART: Final = r"0-9a-z\u00c0-\u058f\u0900-\u0dff"
"""Letters and digits of scripts in which words begin at a space."""
_WORD_START: Final = re.compile(f"[{_APART}]")
_CHANGE: Final = re.compile(f"(?<=[{_APART}])(?=[^ {_APART}])|(?<=[^ {_APART}])(?=[{_APART}])")
_LEET: Final = str.maketrans("013457@$!", "oieastasi")
_FOLDED: Final = (
    DRAWN_LIKE
    | str.maketrans("ىیکےةۃہ一力口二卜工夕八", "ييكيهههーカロニトエタハ")
    | str.maketrans("ᆨᆫᆮᆯᆷᆸᆺᆼᆽᆾᆿᇀᇁᇂ", "ᄀᄂᄃᄅᄆᄇᄉᄋᄌᄎᄏᄐᄑᄒ")  # the ends of Korean syllables, as where they stand alone
    | {ord("æ"): "ae", ord("œ"): "oe"}
)
_JOINED: Final = 5
"""Shorter words are not searched inside of letters that were joined."""
_REVERSED: Final = 7
"""Shorter words are not searched from right to left."""


def secret_fields(params: Mapping[str, Any]) -> list[str]:
    """Return the fields of a form that seem to ask for a secret. In doubt a field counts as one, so all fields after the first
    `MAX_SEARCHED` characters do.
    """
    schema = params.get("requestedSchema")
    properties = schema.get("properties") if type(schema) is dict else None
    if type(schema) is not dict or type(properties) is not dict:
        return []
    about = [
        text
        for part in (params.get("message"), schema.get("title"), schema.get("description"))
        for text in _texts(part)
    ]
    left = MAX_SEARCHED - sum(map(len, about))
    form = _Form(about, {}, {})
    for name, field in properties.items():
        texts = [name, *_texts_of(field)]
        left -= _SEARCH_COST + sum(map(len, texts))
        if left < 0:
            break
        form.add(name, field, [_CAMEL.sub(" ", name), *texts[1:]])
    found = form.asked()
    return [name for name in properties if name in found or name not in form.known]


class _Form(msgspec.Struct, frozen=True):
    """The part of a form that is searched: its texts without those of `fields`, and the fields a secret can be written into."""

    about: list[str]
    fields: dict[str, list[str]]
    known: dict[str, Any]

    def add(self, name: str, field: Any, texts: list[str]) -> None:
        self.known[name] = field
        if _is_free(field):
            self.fields[name] = texts
        else:
            self.about.extend(texts)

    def asked(self) -> Collection[str]:
        everything = [*self.about, *(text for texts in self.fields.values() for text in texts)]
        if not self.fields:
            return ()
        if not _names_secret(everything) and not any(map(_is_secret, self.known.values())):
            return self.fields if _describes_secret(everything) else ()
        found = {name for name in self.fields if self._asks(name)}
        if found:
            return found
        if _names_secret(self.about, numbers_only=True):
            return self.fields
        return {name for name in self.fields if not _is_number(self.known[name])} if _names_secret(self.about) else ()

    def _asks(self, name: str) -> bool:
        field = self.known[name]
        return _is_secret(field) or _names_secret(self.fields[name], numbers_only=_is_number(field))


def _is_free(field: Any) -> bool:
    """Whether a person can enter a secret of their own, which a choice, a date or a yes is not."""
    if type(field) is not dict:
        return True
    if any(keyword in field for keyword in ("enum", "oneOf", "anyOf", "const")) or field.get("format") in _TEXT_FORMATS:
        return False
    return field.get("type") not in ("boolean", "array", "object", "null")


def _is_number(field: Any) -> bool:
    return type(field) is dict and field.get("type") in ("integer", "number")


def _is_secret(field: Any) -> bool:
    return type(field) is dict and (field.get("format") == "password" or field.get("writeOnly") is True)


def _names_secret(texts: Collection[str], *, numbers_only: bool = False) -> bool:
    words = _numeric_words() if numbers_only else _all_words()
    return any(map(_HINTS.search, texts)) or words.find(texts)


def _describes_secret(texts: Collection[str]) -> bool:
    text = _without_neutral(texts)
    known: dict[str, bool] = {}

    def mentions(concept: str) -> bool:
        if concept not in known:
            known[concept] = _occurs(_concepts()[concept], text)
        return known[concept]

    return any(all(map(mentions, concepts)) for concepts in TOGETHER)


def _texts_of(field: Any) -> list[str]:
    if type(field) is not dict:
        return []
    keywords = (
        "title",
        "description",
        "pattern",
        "default",
        "enum",
        "enumNames",
        "examples",
        "oneOf",
        "anyOf",
        "items",
    )
    return [text for keyword in keywords for text in _texts(field.get(keyword))]


def _texts(value: Any) -> Iterator[str]:
    """The texts of a keyword: a text, a list of them, or a list of choices with titles."""
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is str:
            yield item
        elif type(item) is list:
            pending.extend(item)
        elif type(item) is dict:
            pending.extend(item.get(keyword) for keyword in ("title", "description", "const", "enum", "oneOf", "anyOf"))


class _Words:
    """Searches a text for words: at the beginnings of words, and anywhere in letters that stood apart or from right to left."""

    def __init__(self, *lists: str) -> None:
        entries = [entry for listed in lists for entry in _entries(listed)]
        bare = {_plain(entry.strip("~.")).replace(" ", "") for entry in entries}
        self._words = _spellings(entries)
        self._joined = tuple(word for word in bare if len(word) >= _JOINED)
        self._reversed = tuple(word[::-1] for word in bare if len(word) >= _REVERSED)

    def find(self, texts: Collection[str]) -> bool:
        shown = _search_text("\n".join(texts))
        joined = "".join(f" {found[0].replace(' ', '')} " for found in _SINGLE.finditer(shown))
        return (
            any(_occurs(self._words, _without_neutral(one)) for one in _readings(texts))
            or (joined != "" and (_occurs(self._words, joined) or _occurs(self._joined, joined)))
            or _occurs(self._reversed, shown)
        )


def _occurs(words: Iterable[str], text: str) -> bool:
    return any(map(text.__contains__, words))


@cache
def _all_words() -> _Words:
    return _Words(SECRETS, NUMERIC_SECRETS)


@cache
def _numeric_words() -> _Words:
    return _Words(NUMERIC_SECRETS)


@cache
def _neutral() -> tuple[str, ...]:
    return _spellings(_entries(NEUTRAL))


@cache
def _concepts() -> dict[str, tuple[str, ...]]:
    return {concept: _spellings(_entries(listed)) for concept, listed in CONCEPTS.items()}


def _entries(listed: str) -> list[str]:
    return [entry for part in listed.split(",") if (entry := " ".join(part.split()))]


def _spellings(entries: Iterable[str]) -> tuple[str, ...]:
    """How the words stand in a searched text: with a space where a word begins or ends, and with and without spaces inside."""
    made: dict[str, None] = {}
    for entry in entries:
        word = _plain(entry.strip("~."))
        start = " " if not entry.startswith("~") and _WORD_START.match(word) else ""
        end = " " if entry.endswith(".") else ""
        made |= dict.fromkeys((f"{start}{word}{end}", f"{start}{word.replace(' ', '')}{end}"))
    return tuple(made)


def _without_neutral(texts: Iterable[str]) -> str:
    """The texts as they are searched. The end of one and the beginning of the next are no neutral words together."""
    known = tuple(texts)
    shown = _search_text("\n".join(known))
    if not _occurs(_neutral(), shown):
        return shown
    parts = (_of_neutral(_search_text(text)).strip() for text in known)
    return f" {_DENSE_GAP.sub('', ' '.join(parts))} "


def _of_neutral(text: str) -> str:
    for words in filter(text.__contains__, _neutral()):
        text = text.replace(words, " ")
    return text


def _readings(texts: Collection[str]) -> Iterator[Iterable[str]]:
    """The texts, also with digits and signs read as letters, and with Greek capitals read as Latin ones."""
    yield texts
    if any(sign in text for text in texts for sign in "013457@$!"):
        yield (text.translate(_LEET) for text in texts)
    if not all(map(str.isascii, texts)):
        yield (text.translate(CAPITALS) for text in texts)


def _search_text(text: str) -> str:
    return f" {_plain(_MARKUP.sub('', _REFERENCE.sub(_referred, text)))} "


def _plain(text: str) -> str:
    """Fold a text, with one space between its words, and none in scripts without them."""
    return _CHANGE.sub(" ", _DENSE_GAP.sub("", _DIVIDERS.sub(" ", _fold(text)).strip()))


def _fold(text: str) -> str:
    # Marks first: normalization takes quadratic time to sort a long run of them.
    seen = _without_marks(unicodedata.normalize("NFKD", _without_marks(text)).casefold())
    return _without_marks(unicodedata.normalize("NFKD", seen)).translate(_FOLDED)


def _without_marks(text: str) -> str:
    return "".join(filter(_is_seen, text))


@cache
def _is_seen_non_ascii(character: str) -> bool:
    return unicodedata.category(character) not in ("Mn", "Mc", "Me", "Cf", "Cc", "Cs", "Co", "Cn") and not is_blank(
        character
    )


def _is_seen(character: str) -> bool:
    return character < "\x80" or _is_seen_non_ascii(character)


def _referred(found: re.Match[str]) -> str:
    code = int(found[1][1:], 16) if found[1][0] == "x" else int(found[1])
    return chr(code) if code < 0x110000 else ""
