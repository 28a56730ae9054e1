"""A library imported without some of its modules, or of those it imports, works as usual for other code in the same process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taskgate.bare_packages import as_if_absent, imported_when_called

PROBE = """
import sys
from taskgate.bare_packages import bare_package
bare_package(sys.argv[1])
__import__(sys.argv[2])
assert sys.argv[4] not in sys.modules
import importlib
package = importlib.import_module(sys.argv[1])
assert hasattr(package, sys.argv[3])
assert sys.argv[4] in sys.modules
assert not hasattr(package, "no_such_name")
bare_package("no_such_package")
assert "no_such_package" not in sys.modules
"""


@pytest.mark.parametrize(
    "names",
    [
        ("uvicorn", "uvicorn.server", "run", "uvicorn.main"),
        ("watchfiles", "watchfiles._rust_notify", "awatch", "watchfiles.main"),
    ],
    ids=lambda names: str(names[0]),
)
def test_first_module_of_a_package_runs_when_one_of_its_names_is_read(names: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, "-c", PROBE, *names], check=True, timeout=120)


SEVERAL = "import late_dependency.inner\nfrom late_dependency import double\n"
DEPENDENCY = "CALLS = []\ndef double(value, *, add=0):\n    return value * 2 + add\n"
ATTRIBUTE = "import late_dependency.inner\ndef tripled(value):\n    return late_dependency.inner.triple(value)\n"
INNER = "CALLS = []\ndef triple(value):\n    return value * 3\n"
OPTIONAL = "try:\n    import late_dependency\nexcept ImportError:\n    late_dependency = None\n"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("library", "late_dependency", "late_dependency.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "late_dependency").mkdir()
    (tmp_path / "late_dependency" / "__init__.py").write_text(DEPENDENCY)
    (tmp_path / "late_dependency" / "inner.py").write_text(INNER)
    return tmp_path / "library.py"


def test_module_is_imported_when_a_function_of_it_is_called(library: Path) -> None:
    library.write_text(SEVERAL)
    with imported_when_called("late_dependency", "late_dependency.inner"):
        import library as found  # type: ignore[import-not-found]
    assert "late_dependency" not in sys.modules
    assert found.double(3, add=1) == 7
    assert sys.modules["late_dependency"].CALLS == []


def test_module_is_imported_when_it_is_used_as_an_attribute_of_its_package(library: Path) -> None:
    library.write_text(ATTRIBUTE)
    import late_dependency  # type: ignore[import-not-found]

    with imported_when_called("late_dependency.inner"):
        import library as found
    assert "late_dependency.inner" not in sys.modules
    assert found.tripled(3) == 9
    import late_dependency.inner  # type: ignore[import-not-found]

    assert late_dependency.inner.CALLS == []


def test_module_that_is_imported_already_is_used(library: Path) -> None:
    library.write_text(SEVERAL)
    import late_dependency

    with imported_when_called("late_dependency", "late_dependency.inner"), as_if_absent("late_dependency"):
        import library as found
    assert found.double is late_dependency.double
    assert sys.modules["late_dependency"] is late_dependency


def test_optional_module_is_absent_for_one_import_only(library: Path) -> None:
    library.write_text(OPTIONAL)
    with as_if_absent("late_dependency"):
        import library as found
    assert found.late_dependency is None
    import late_dependency

    assert late_dependency.CALLS == []
