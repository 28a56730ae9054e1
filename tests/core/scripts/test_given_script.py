"""The stored arguments of `run_script`."""

from __future__ import annotations

import pytest

from taskgate.core.scripts.given_script import read_given


def test_inputs_are_read_as_they_were_sent() -> None:
    """They may have megabytes, which take long to decode."""
    given = read_given(b'{"code": "1", "inputs": {"b" : [ 1.50 ], "a": {}}, "resume_of": "tg_1", "ttl": 5}')
    assert (given.code, given.inputs_json, given.resume_of) == ("1", b'{"b" : [ 1.50 ], "a": {}}', "tg_1")


@pytest.mark.parametrize("arguments", [b'{"code": "1"}', b'{"code": "1", "inputs": null, "resume_of": null}'])
def test_missing_inputs_are_an_empty_object(arguments: bytes) -> None:
    given = read_given(arguments)
    assert (given.inputs_json, given.resume_of) == (b"{}", None)
