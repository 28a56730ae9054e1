"""Tool search: the right tool is first, typing errors are tolerated, and results are deterministic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.catalog import search
from taskgate.core.catalog.search import Hit, SearchDocument, SearchIndex, words_of

CATALOG = [
    SearchDocument(
        "files__read_file", "read_file", "Read a file", "Returns the contents of a file on disk.", ("path",)
    ),
    SearchDocument(
        "files__write_file", "write_file", "Write a file", "Stores text in a file on disk.", ("path", "text")
    ),
    SearchDocument("files__list_directory", "list_directory", "", "Shows what a directory holds.", ("path",)),
    SearchDocument("git__createBranch", "createBranch", "", "Makes a branch in a repository.", ("repository", "name")),
    SearchDocument("git__merge_request", "merge_request", "", "Opens a merge request for review.", ("branch", "title")),
    SearchDocument("mail__send", "send", "Send mail", "Sends an e-mail to somebody.", ("recipient", "subject", "body")),
    SearchDocument("shop__refund", "refund", "", "Gives money back for an order.", ("orderId", "amount")),
]
INDEX = SearchIndex.build(CATALOG)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("read_file", "files__read_file"),
        ("files__read_file", "files__read_file"),
        ("readFile", "files__read_file"),
        ("write text to a file", "files__write_file"),
        ("directory", "files__list_directory"),
        ("directories", "files__list_directory"),
        ("new branch", "git__createBranch"),
        ("money back", "shop__refund"),
        ("order id", "shop__refund"),
        ("recipient", "mail__send"),
        ("direc", "files__list_directory"),
        ("brnach", "git__createBranch"),
        ("repositry", "git__createBranch"),
        ("recpiient", "mail__send"),
        ("refnud", "shop__refund"),
    ],
)
def test_the_right_tool_comes_first(query: str, first: str) -> None:
    assert INDEX.search(query)[0].key == first


@pytest.mark.parametrize("query", ["", "   ", "zzzzqqqq", "?!", "zq", "zqx"])
def test_a_query_without_match_finds_nothing(query: str) -> None:
    assert INDEX.search(query) == []


def test_limits_hold() -> None:
    assert len(INDEX.search("file path", limit=1)) == 1
    assert INDEX.search("file", limit=0) == []
    assert INDEX.search("file", limit=-5) == []
    assert INDEX.search("x" * 100_000) == []


def test_ties_are_in_the_order_of_keys_and_answers_repeat() -> None:
    twins = SearchIndex.build([SearchDocument(key, "same thing") for key in ("b", "c", "a")])
    assert [hit.key for hit in twins.search("thing")] == ["a", "b", "c"]
    assert twins.search("thing") == twins.search("thing")


def test_an_empty_catalog_finds_nothing() -> None:
    assert SearchIndex.build([]).search("file") == []
    assert SearchIndex.build([SearchDocument("", "")]).search("file") == []


def test_a_word_in_most_tools_only_weighs_what_rarer_words_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_COMMON", 3)
    index = SearchIndex.build(
        [SearchDocument(f"get_{i}", "get", "", "get it" if i % 2 else "") for i in range(8)]
        + [SearchDocument("get_invoice", "get_invoice"), SearchDocument("drop_invoice", "drop_invoice")]
    )
    assert [hit.key for hit in index.search("get invoice")] == ["get_invoice", "drop_invoice"]
    assert len(index.search("get")) >= 3


def test_the_cache_of_words_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_REMEMBERED_WORDS", 1)
    index = SearchIndex.build(CATALOG)
    index.search("file branch order")
    assert len(index._expansions) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("readFiles", ["read", "file"]),
        ("HTTPServer2", ["http", "server", "2"]),
        ("list_directories", ["list", "directory"]),
        ("status class bus", ["status", "class", "bus"]),
        ("Straßen ｆｉｌｅ", ["stra", "ß", "en", "file"]),
        ("数据 库", ["数据", "库"]),
        ("as", ["as"]),
    ],
)
def test_words_are_split_at_case_and_punctuation(text: str, words: list[str]) -> None:
    search._stem.cache_clear()
    assert words_of(text) == words


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=60)), max_size=8), st.text(max_size=40))
def test_any_catalog_and_any_query_give_sorted_hits_of_the_catalog(entries: list[tuple[str, str]], query: str) -> None:
    documents = [SearchDocument(f"k{i}", name, "", text) for i, (name, text) in enumerate(entries)]
    hits = SearchIndex.build(documents).search(query)
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.key))
    assert {hit.key for hit in hits} <= {document.key for document in documents}
    assert all(isinstance(hit, Hit) and hit.score >= 0 for hit in hits)
