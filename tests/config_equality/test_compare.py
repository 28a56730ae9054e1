"""The comparison of two versions sees what differs."""

from __future__ import annotations

import json

import pytest
from tests.config_equality.compare import compared, differences
from tests.config_equality.generated_files import files

from taskgate.config.json_schema import configuration_schema

VALUES = {"values": {"limits": {"json_depth": 64, "names": ["a", "b"]}, "auth": {"none": False}}}


@pytest.mark.parametrize(
    ("after", "difference"),
    [
        ({"values": {"limits": {"json_depth": 128, "names": ["a", "b"]}, "auth": {"none": False}}}, "64 -> 128"),
        ({"values": {"limits": {"json_depth": 64, "names": ["b", "a"]}, "auth": {"none": False}}}, '"a" -> "b"'),
        ({"values": {"limits": {"json_depth": 64, "names": ["a"]}, "auth": {"none": False}}}, '["a", "b"] -> ["a"]'),
        ({"values": {"limits": {"json_depth": 64, "names": ["a", "b"]}, "auth": {}}}, "auth.none: missing"),
        ({"values": {"limits": {"json_depth": 64, "names": ["a", "b"]}, "auth": {"none": 0}}}, "false -> 0"),
        ({"problems": ["limits: no"]}, "values: missing"),
    ],
)
def test_a_difference_is_found(after: dict[str, object], difference: str) -> None:
    assert any(difference in one for one in differences(VALUES, after))


def test_keys_that_only_the_new_version_has_are_no_difference() -> None:
    after = {"values": {"limits": {"json_depth": 64, "names": ["a", "b"], "new": 1}, "auth": {"none": False}}}
    assert not differences(VALUES, after)


def test_files_are_counted_by_what_became_of_them() -> None:
    before = [{"file": "1", **VALUES}, {"file": "2", "problems": ["no"]}, {"file": "3", **VALUES}]
    after = [{"file": "1", **VALUES}, {"file": "2", "problems": ["no"]}, {"file": "3", "problems": ["no"]}]
    old, new = ("\n".join(map(json.dumps, each)) for each in (before, after))
    accepted, refused, found = compared(old, new, frozenset())
    assert (accepted, refused) == (1, 1)
    assert all(texts == ["3"] for texts in found.values())
    assert len(found) == 2


def test_every_key_of_the_schema_is_in_a_generated_file() -> None:
    schema = configuration_schema()
    keys = {key for section in (schema, *schema["$defs"].values()) for key in section["properties"]}
    text = json.dumps(list(files(schema)))
    assert not [key for key in keys if f'"{key}":' not in text]
