"""After a login, people are redirected to a page of the console and nowhere else."""

from __future__ import annotations

import pytest

from taskgate.core.return_path import MAX_PATH, safe_return


@pytest.mark.parametrize(
    "path", ["/", "/approvals", "/approvals?all=1&after=12:ab", "/elicitations/Ab_c-1", "/approvals/x?full=1"]
)
def test_a_path_of_the_console_is_accepted(path: str) -> None:
    assert safe_return(path) == path


@pytest.mark.parametrize(
    "wish",
    [
        None,
        "",
        "approvals",
        "https://evil.test/",
        "//evil.test/",
        "///evil.test",
        "/\\evil.test",
        "\\\\evil.test",
        "/\tevil",
        "/a\r\nset-cookie: x=1",
        "/\u2044evil.test",
        "/a#b",
        "/@evil.test",
        "javascript:alert(1)",
        "/login",
        "/login?next=/login",
        "/logout",
        "/" + "a" * MAX_PATH,
        "/approvals\n",
    ],
)
def test_other_return_paths_are_refused(wish: str | None) -> None:
    assert safe_return(wish) is None
