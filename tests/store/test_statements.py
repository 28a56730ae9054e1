"""The SQL statements of both databases: those that mean the same in both are written once."""

from __future__ import annotations

import re

from taskgate.store.sql_files import SHARED, for_postgres, for_sqlite, read_folder, read_queries

SQLITE, POSTGRES = "taskgate.store.sqlite", "taskgate.store.postgres"


def normalized(text: str) -> str:
    return " ".join(re.sub(r"^\s*--.*$", "", text, flags=re.MULTILINE).split())


def test_statement_that_both_databases_understand_is_written_once() -> None:
    sqlite, postgres = read_folder(SQLITE), read_folder(POSTGRES)
    twice = [
        name
        for name in sqlite.keys() & postgres.keys()
        if normalized(for_postgres(sqlite[name])) == normalized(postgres[name])
        or normalized(for_sqlite(postgres[name])) == normalized(sqlite[name])
    ]
    assert twice == []


def test_shared_statement_is_translated_for_each_database() -> None:
    shared = "UPDATE t SET a = :a::text WHERE id IN (SELECT value FROM json_each(:ids))"
    assert for_sqlite(shared) == "UPDATE t SET a = :a WHERE id IN (SELECT value FROM json_each(:ids))"
    assert (
        for_postgres(shared)
        == "UPDATE t SET a = :a::text WHERE id = ANY(ARRAY(SELECT json_array_elements_text(:ids::json)))"
    )


def test_adapters_have_all_shared_statements() -> None:
    shared = read_folder(SHARED).keys()
    assert shared <= read_queries(SQLITE, for_sqlite).keys()
    assert shared <= read_queries(POSTGRES, for_postgres).keys()
    assert len(shared) > 50
