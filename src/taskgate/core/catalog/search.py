"""Full-text search for tools, for catalogs that are too large to list.

BM25 over names, titles, argument names and descriptions, each with its weight. A word that occurs in no document is
replaced by words that begin with it or are spelled similarly. The index is built once per revision of a catalog and is
deterministic. What a caller may see is decided before: only that is indexed.
"""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice

import msgspec

from taskgate.core.text.confusables import limit_combining_marks

MAX_QUERY = 512
MAX_WORDS = 16
MAX_RESULTS = 100

_NAME_WEIGHT, _KEY_WEIGHT, _TITLE_WEIGHT, _ARGUMENT_WEIGHT, _DESCRIPTION_WEIGHT = 4.0, 1.0, 3.0, 1.5, 1.0
_SATURATION, _LENGTH_PENALTY = 1.2, 0.5
_MAX_DESCRIPTION = 4096
# A word in more documents than this only adds to the score of documents that rarer words have found; alone it yields
# its best documents.
_COMMON = 800
_EXPANSIONS = 8
_REMEMBERED_WORDS = 4096
_PLAIN_WORD = re.compile(r"[a-z]+|\d+|[^\W\d_a-z]+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


class SearchDocument(msgspec.Struct, frozen=True):
    """The searchable texts of one tool. `key` is what a search returns: the name shown to callers."""

    key: str
    name: str
    title: str = ""
    description: str = ""
    arguments: tuple[str, ...] = ()


class Hit(msgspec.Struct, frozen=True):
    """One found tool; a higher score is a better match."""

    key: str
    score: float


class SearchIndex(msgspec.Struct, frozen=True, eq=False):
    """The index of one catalog."""

    keys: tuple[str, ...]
    postings: Mapping[str, Mapping[int, float]]
    vocabulary: tuple[str, ...]
    by_length: Mapping[int, tuple[str, ...]]
    names: Mapping[str, tuple[int, ...]]
    _expansions: dict[str, tuple[tuple[str, float], ...]] = msgspec.field(default_factory=dict)

    @classmethod
    def build(cls, documents: Iterable[SearchDocument]) -> SearchIndex:
        """Index all documents."""
        listed = list(documents)
        named = [(words_of(document.name), words_of(document.key)) for document in listed]
        postings = _postings([_weights(document, *words) for document, words in zip(listed, named, strict=True)])
        vocabulary = tuple(sorted(postings))
        lengths: dict[int, list[str]] = {}
        for word in vocabulary:
            if not word.isdigit():
                lengths.setdefault(len(word), []).append(word)
        names: dict[str, tuple[int, ...]] = {}
        for at, (name, key) in enumerate(named):
            for text in {" ".join(name), " ".join(key)}:
                names[text] = (*names.get(text, ()), at)
        by_length = {length: tuple(words) for length, words in lengths.items()}
        return cls(
            keys=tuple(document.key for document in listed),
            postings=postings,
            vocabulary=vocabulary,
            by_length=by_length,
            names=names,
        )

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """Return the best matches, best first; ties in the order of their keys."""
        words = words_of(query[:MAX_QUERY])[:MAX_WORDS]
        scores = self._scores(words)
        # A query that is a whole name refers to that tool.
        for at in self.names.get(" ".join(words), ()):
            scores[at] = scores.get(at, 0.0) + 100.0
        return self._best(scores, max(0, min(limit, MAX_RESULTS)))

    def _best(self, scores: dict[int, float], limit: int) -> list[Hit]:
        top = heapq.nlargest(limit, scores.values())
        minimum = top[-1] if top else math.inf
        hits = [Hit(self.keys[at], round(score, 6)) for at, score in scores.items() if score >= minimum]
        return sorted(hits, key=lambda hit: (-hit.score, hit.key))[:limit]

    def _scores(self, words: list[str]) -> dict[int, float]:
        terms: dict[str, float] = {}
        for word in words:
            for term, weight in self._expanded(word):
                terms[term] = max(weight, terms.get(term, 0.0))
        scores: dict[int, float] = {}
        for term in sorted(terms, key=lambda term: (len(self.postings[term]), term)):
            posting, weight = self.postings[term], terms[term]
            if len(posting) > _COMMON and scores:
                for at in scores:
                    scores[at] += weight * posting.get(at, 0.0)
                continue
            for at, impact in islice(posting.items(), _COMMON):
                scores[at] = scores.get(at, 0.0) + weight * impact
        return scores

    def _expanded(self, word: str) -> tuple[tuple[str, float], ...]:
        known = self._expansions.get(word)
        if known is None:
            known = self._expand(word)
            if len(self._expansions) < _REMEMBERED_WORDS:
                self._expansions[word] = known
        return known

    def _expand(self, word: str) -> tuple[tuple[str, float], ...]:
        """The word itself, words that begin with it, and, if it is unknown, words that are spelled similarly."""
        terms: dict[str, float] = {word: 1.0} if word in self.postings else {}
        if len(word) >= 3:
            at = bisect_left(self.vocabulary, word)
            for longer in self.vocabulary[at : at + _EXPANSIONS]:
                if longer.startswith(word):
                    terms.setdefault(longer, 0.6)
        if not terms and len(word) >= 4:
            # Imported on first use: most gateways never search.
            from rapidfuzz import process
            from rapidfuzz.distance import OSA

            edits = 1 if len(word) < 8 else 2
            found = [
                (distance, term)
                for length in range(len(word) - edits, len(word) + edits + 1)
                for term, distance, _ in process.extract(
                    word, self.by_length.get(length, ()), scorer=OSA.distance, score_cutoff=edits, limit=_EXPANSIONS
                )
            ]
            terms = {term: 0.8 / (1 + distance) for distance, term in sorted(found)[:_EXPANSIONS]}
        return tuple(terms.items())


def words_of(text: str) -> list[str]:
    """Return the words of a name or a sentence: `readFile`, `read_file` and `Read files` have the same two."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", limit_combining_marks(text))
    return [_stem(word) for word in (_PLAIN_WORD if plain.islower() else _WORD).findall(plain)]


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    word = word.lower()
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _weights(document: SearchDocument, name: list[str], key: list[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    fields = (
        (_NAME_WEIGHT, name),
        (_KEY_WEIGHT, key),
        (_TITLE_WEIGHT, words_of(document.title[:_MAX_DESCRIPTION])),
        (_ARGUMENT_WEIGHT, words_of(" ".join(document.arguments))),
        # In a sentence, capital letters do not mark word boundaries.
        (_DESCRIPTION_WEIGHT, words_of(document.description[:_MAX_DESCRIPTION].lower())),
    )
    for weight, words in fields:
        for word in words:
            weights[word] = weights.get(word, 0.0) + weight
    return weights


def _postings(counted: list[dict[str, float]]) -> dict[str, dict[int, float]]:
    total = max(1, len(counted))
    average = sum(sum(weights.values()) for weights in counted) / total or 1.0
    postings: dict[str, dict[int, float]] = {}
    for at, weights in enumerate(counted):
        dampening = _SATURATION * (1 - _LENGTH_PENALTY + _LENGTH_PENALTY * sum(weights.values()) / average)
        for word, weight in weights.items():
            posting = postings.get(word)
            if posting is None:
                posting = postings[word] = {}
            posting[at] = weight / (weight + dampening)
    return {word: _scaled(posting, total) for word, posting in postings.items()}


def _scaled(posting: dict[int, float], total: int) -> dict[int, float]:
    rarity = math.log(1 + (total - len(posting) + 0.5) / (len(posting) + 0.5))
    scaled = {at: impact * rarity for at, impact in posting.items()}
    # For a common word the best documents are first, because only those are visited.
    return dict(sorted(scaled.items(), key=lambda item: (-item[1], item[0]))) if len(scaled) > _COMMON else scaled
