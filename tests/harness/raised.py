"""Expect an error by its type, its fields and the values that it names, not by its sentence.

The contract of an error is its `error_type` and its fields; the sentence may be rewritten at any time. Values are what it must
contain in any wording: a limit, a key of the configuration, a path, the text of another program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from taskgate.config.problems import ConfigError
from taskgate.core.errors import TaskgateError


@contextmanager
def raises_error(error_type: str, *values: str) -> Iterator[pytest.ExceptionInfo[TaskgateError]]:
    """Expect an error of this type whose message contains these values."""
    with pytest.raises(TaskgateError) as caught:
        yield caught
    assert caught.value.error_type == error_type, caught.value
    missing = [value for value in values if value not in caught.value.message]
    assert not missing, f"{missing} not in {caught.value.message!r}"


@contextmanager
def raises_problem(key: str, *values: str, file: str = "") -> Iterator[pytest.ExceptionInfo[ConfigError]]:
    """Expect a configuration with one problem, at this key and in a file whose path ends like this, that names these values."""
    with pytest.raises(ConfigError) as caught:
        yield caught
    (problem,) = caught.value.problems
    assert (problem.key, problem.file.endswith(file)) == (key, True), problem
    missing = [value for value in values if value not in str(problem)]
    assert not missing, f"{missing} not in {problem}"
