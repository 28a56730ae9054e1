"""Search history: the statement and values for a filter, in the query languages of both databases."""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple

from taskgate.core.history.filters import HistoryFilter, search_words, words_of
from taskgate.core.history.row import HistoryRow, first_number
from taskgate.store.operation import Query
from taskgate.store.operations.history import EVERY_NUMBER, history_row_from
from taskgate.store.reader import Reader
from taskgate.telemetry.damaged_rows import readable

_COLUMNS: Final = ("tenant", "caller", "scope", "server", "tool", "client", "error_type", "kind")
_SEARCHED: Final = "{caller scope server tool client error_type rule}"
"""The columns of the word index that a text is searched in."""


class HistoryPage(NamedTuple):
    """Rows, newest end first. `after` is the number of the last row if there may be more, None at the end."""

    rows: tuple[HistoryRow, ...]
    after: int | None


class FindHistory(Query[HistoryPage], frozen=True):
    """Matching rows with a number below `before`, newest end first."""

    is_search: ClassVar[bool] = True

    filters: HistoryFilter
    before: int | None = None
    limit: int = 50

    def run(self, reader: Reader) -> HistoryPage:
        if self.filters.text is not None and not search_words(self.filters.text):
            return HistoryPage((), None)
        name, values = history_query(self.filters, self.before, self.limit + 1)
        found = reader.run(name, **values).fetchall()
        rows = tuple(readable("history", found[: self.limit], history_row_from, lambda row: str(row[0])))
        return HistoryPage(rows, rows[-1].number if rows and len(found) > self.limit else None)


def history_query(filters: HistoryFilter, before: int | None, limit: int) -> tuple[str, dict[str, Any]]:
    """Return the name of the statement and its values. Rows in a range, or of one caller, are found without the word index."""
    values: dict[str, Any] = {
        "first": first_number(filters.since_ms) if filters.since_ms is not None else 0,
        "before": min(
            before if before is not None else EVERY_NUMBER,
            first_number(filters.until_ms) if filters.until_ms is not None else EVERY_NUMBER,
        ),
        "limit": limit,
    }
    given = {name: getattr(filters, name) for name in _COLUMNS if getattr(filters, name) is not None}
    if not given and filters.outcomes is None and filters.text is None:
        return "history_latest", values
    if given.keys() == {"caller"} and filters.outcomes is None and filters.text is None:
        return "history_of_caller", values | given
    outcomes = None if filters.outcomes is None else "," + ",".join(sorted(filters.outcomes)) + ","
    words = search_words(filters.text) if filters.text is not None else ()
    values |= {name: given.get(name) for name in _COLUMNS} | {"outcomes": outcomes}
    values["match"] = _match(given, filters, words)
    # The longest word is in the fewest names. Databases differ in how they make other than ASCII letters lower case.
    values["contained"] = max((word for word in words if word.isascii()), key=len, default=None)
    values["words"] = " & ".join(f"'{word}':*" if _is_beginning(word) else f"'{word}'" for word in words) or None
    return "history_matching", values


def _match(given: dict[str, str], filters: HistoryFilter, words: tuple[str, ...]) -> str:
    """A query of SQLite's FTS5. Words are letters and digits only, so none of them can end its quotes."""
    parts = [f"{_SEARCHED} : {_quoted(word)}{' *' if _is_beginning(word) else ''}" for word in words]
    parts += [f"{name} : {_phrase(value)}" for name, value in given.items() if words_of(value)]
    if filters.outcomes is not None:
        parts.append("(" + " OR ".join(f"outcome : {_phrase(one)}" for one in sorted(filters.outcomes)) + ")")
    # A name without letters and digits is compared by its column alone: every row has a kind.
    return " AND ".join(parts) or "(kind : task OR kind : call OR kind : denial OR kind : gap)"


def _is_beginning(word: str) -> bool:
    """Whether a word also finds longer ones. A single letter does not: it would match nearly all words."""
    return len(word) > 1


def _phrase(name: str) -> str:
    return _quoted(" ".join(_tokens(name)))


def _quoted(text: str) -> str:
    return f'"{text}"'


def _tokens(name: str) -> list[str]:
    """The words of a name in their order, with repetitions, as the word index has them."""
    return "".join(letter if letter.isalnum() else " " for letter in name).split()
