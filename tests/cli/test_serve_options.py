"""`taskgate serve` parses its usual options itself, without the command line library, which parses all others."""

from __future__ import annotations

import pytest

from taskgate.cli.announcement import options


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], {}),
        (["-c", "a.yaml"], {"config": "a.yaml"}),
        (["--config=a.yaml", "--host", "::1", "--port", "0"], {"config": "a.yaml", "host": "::1", "port": "0"}),
        (["--port=65535"], {"port": "65535"}),
        (["--on-demand", "--config", "a"], {"on_demand": "", "config": "a"}),
    ],
)
def test_usual_options_are_parsed(arguments: list[str], found: dict[str, str]) -> None:
    assert options(arguments) == found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--workers", "2"],
        ["-c"],
        ["-c=a.yaml"],
        ["--port", "65536"],
        ["--port", "x"],
        ["--port="],
        ["extra"],
    ],
    ids=" ".join,
)
def test_other_options_are_left_to_the_command_line_library(arguments: list[str]) -> None:
    assert options(arguments) is None
