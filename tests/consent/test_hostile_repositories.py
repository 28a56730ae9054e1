"""A cloned repository starts, contacts and reads nothing before its user has allowed its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.consent.hostile_repositories import REPOSITORIES, SECRET, Observed, create, observed

from taskgate.bridge.main import bridge
from taskgate.cli.root import build_app
from taskgate.config.load import load

NAMES = sorted(REPOSITORIES)
CURSOR = '{"mcpServers": {"notes": {"command": "echo", "args": ["x"]}}}\n'


class Place:
    """A cloned repository, and the home of the user who has opened it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.repository, self.home, self.ran = folder / "repository", folder / "home", folder / "ran"
        self.repository.mkdir()
        self.settings = self.home / ".cursor" / "mcp.json"
        self.settings.parent.mkdir(parents=True)
        self.settings.write_text(CURSOR)
        (self.home / ".netrc").write_text(SECRET)
        create(self.repository, name, self.ran)
        self.before = self._files()

    def _files(self) -> dict[Path, str]:
        return {path: path.read_text() for path in self.repository.rglob("*") if path.is_file()}

    def check(self, seen: Observed) -> None:
        assert (seen.programs, seen.connections) == ([], [])
        assert seen.nothing, seen
        assert not self.ran.exists()
        assert self._files() == self.before
        written = [path for path in self.home.rglob("*") if path.is_file() and path.name != ".netrc"]
        assert not [path for path in written if SECRET in path.read_text() or str(self.ran) in path.read_text()]


@pytest.fixture(params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


def test_there_are_twenty() -> None:
    assert len(NAMES) == 20


def test_stdio_starts_nothing(place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with observed(place.repository, place.home, monkeypatch) as seen:
        assert bridge(None, None) == 2
        alone = CliRunner().invoke(build_app(), ["stdio", "--alone"])
    place.check(seen)
    command = f"taskgate allow {place.repository / 'taskgate.yaml'}"
    assert command in capfd.readouterr().err
    assert (alone.exit_code, command in alone.stderr) == (2, True)


@pytest.mark.parametrize("name", ["a header", "a command for a secret"])
def test_observer_sees_what_a_named_file_does(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, name)
    with observed(place.repository, place.home, monkeypatch) as seen:
        load("taskgate.yaml")
    assert not seen.nothing
    assert place.ran.exists() is (name == "a command for a secret")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["import"], 2),
        (["import", "--json"], 2),
        (["import", "--dry-run"], 0),
        (["import", "-c", "{own}"], 0),
        (["install", "cursor"], 2),
        (["install", "cursor", "--dry-run"], 0),
        (["install", "cursor", "--project"], 2),
        (["install", "claude-code", "--project", "--dry-run"], 0),
        (["install", "claude-code", "-c", "{own}"], 0),
        (["wrap", "--client", "cursor", "--", "true"], 2),
        (["init", "-c", "{own}"], 0),
    ],
)
def test_import_and_install_take_nothing_over(
    place: Place, words: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = place.home / "own.yaml"
    with observed(place.repository, place.home, monkeypatch) as seen:
        done = CliRunner().invoke(build_app(), [word.format(own=own) for word in words])
    assert done.exit_code == code, done.output
    if "install" not in words or code:
        assert place.settings.read_text() == CURSOR
    place.check(seen)
