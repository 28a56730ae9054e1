"""The cache of compiled templates: valid code is used, and invalid or missing code is compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import jinja2
import pytest

from taskgate.dashboard.compiled_templates import CodeFile, new_environment


@pytest.fixture(autouse=True)
def _writes_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def rendered(folder: Path, path: Path | None, compiled: list[str]) -> str:
    """The page of the folder. The names of the templates that had to be compiled are added to the list."""
    codes = CodeFile(path)
    environment = new_environment(codes, folder)
    original = environment.compile

    def compile_and_note(source: str, name: str | None = None, filename: str | None = None) -> object:
        compiled.append(name or "")
        return original(source, name, filename)

    environment.compile = compile_and_note  # type: ignore[assignment]
    text = environment.get_template("page.html").render(name="<b>")
    codes.save()
    return text


def folder_with(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "templates"
    folder.mkdir(exist_ok=True)
    (folder / "page.html").write_text(text)
    return folder


def test_second_process_compiles_nothing_and_renders_the_same(tmp_path: Path) -> None:
    folder, path, compiled = folder_with(tmp_path, "Hello {{ name }}"), tmp_path / "kept" / "code.bin", list[str]()
    first = rendered(folder, path, compiled)
    assert (first, compiled) == ("Hello &lt;b&gt;", ["page.html"])
    assert rendered(folder, path, compiled) == first
    assert compiled == ["page.html"]
    assert [each.name for each in path.parent.iterdir()] == ["code.bin"]


def test_changed_template_is_compiled_again(tmp_path: Path) -> None:
    path, compiled = tmp_path / "code.bin", list[str]()
    rendered(folder_with(tmp_path, "Hello {{ name }}"), path, compiled)
    assert rendered(folder_with(tmp_path, "Goodbye {{ name }}"), path, compiled) == "Goodbye &lt;b&gt;"
    assert len(compiled) == 2


def test_code_of_another_library_version_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path, compiled = folder_with(tmp_path, "Hello {{ name }}"), tmp_path / "code.bin", list[str]()
    rendered(folder, path, compiled)
    monkeypatch.setattr(jinja2, "__version__", "0.1")
    rendered(folder, path, compiled)
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", ["shorter", "changed", "empty"])
def test_damaged_file_is_not_used(tmp_path: Path, damage: str) -> None:
    folder, path, compiled = folder_with(tmp_path, "Hello {{ name }}"), tmp_path / "code.bin", list[str]()
    rendered(folder, path, compiled)
    kept = path.read_bytes()
    path.write_bytes({"shorter": kept[:-9], "changed": kept[:-9] + b"\0" + kept[-8:], "empty": b""}[damage])
    assert rendered(folder, path, compiled) == "Hello &lt;b&gt;"
    assert len(compiled) == 2


def test_nothing_is_written_where_python_keeps_no_compiled_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = folder_with(tmp_path, "Hello {{ name }}"), tmp_path / "code.bin"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert rendered(folder, path, []) == "Hello &lt;b&gt;"
    assert not path.exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert rendered(folder, None, []) == "Hello &lt;b&gt;"


def test_read_only_installation_serves_pages(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "Hello {{ name }}")
    (tmp_path / "file").write_text("where the folder should be")
    assert rendered(folder, tmp_path / "file" / "code.bin", []) == "Hello &lt;b&gt;"
