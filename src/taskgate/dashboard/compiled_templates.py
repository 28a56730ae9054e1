"""The templates of the pages, and a cache of their compiled form.

Compiling all templates takes 0.4 s of CPU time, once in each process. Their code is therefore kept in one file beside the compiled
modules of this package, and the same rules apply to it: another source, Python or Jinja makes it invalid, and
PYTHONDONTWRITEBYTECODE or a read-only installation prevents writing it. `python -m taskgate.dashboard.compiled_templates` writes
it while an image is built.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.bccache import Bucket

from taskgate.atomic_files import replace_file
from taskgate.core.governance.card import show_value
from taskgate.core.text.plain_text import visible
from taskgate.dashboard import units
from taskgate.dashboard.assets import HERE
from taskgate.dashboard.text_filters import ago, clear, moment, segment, short_id, shown_name, span, task_status

_DIGEST_BYTES: Final = 32


class CodeFile(jinja2.BytecodeCache):
    """The code of all templates in one file. A file that is damaged or cannot be written is not used."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._codes = _read(path)
        self._is_changed = False

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._codes:
            bucket.bytecode_from_string(self._codes[bucket.key])  # compares the checksum

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key] = bucket.bytecode_to_string()
        self._is_changed = True

    def save(self) -> None:
        """Write what was compiled since the file was read. Readers see the old file or the new one."""
        if self._path is None or not self._is_changed or sys.dont_write_bytecode:
            return
        body = marshal.dumps(self._codes)
        # A read-only installation or a full disk: the next process compiles the templates again.
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            replace_file(self._path, _digest(body) + body, mode=0o644)


def _read(path: Path | None) -> dict[str, bytes]:
    if path is None:
        return {}
    try:
        kept = path.read_bytes()
    except OSError:
        return {}
    body = kept[_DIGEST_BYTES:]
    if _digest(body) != kept[:_DIGEST_BYTES]:
        return {}
    found: dict[str, bytes] = marshal.loads(body)
    return found


def _digest(body: bytes) -> bytes:
    """Identifies the file's content and what wrote it: Jinja, Python, and this module, which has the options of the templates.

    The checksums of Jinja cover the source of each template only.
    """
    own = Path(__file__)
    source = own.read_bytes() if own.exists() else b""
    return hashlib.sha256(f"{jinja2.__version__} {sys.version} {len(source)} ".encode() + source + body).digest()


def code_path() -> Path | None:
    """Beside the compiled modules of this package; None if this Python keeps none."""
    try:
        return Path(importlib.util.cache_from_source(str(HERE / "templates.py"))).with_suffix(".bin")
    except NotImplementedError:
        return None


def new_environment(codes: CodeFile, folder: Path = HERE / "templates") -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        finalize=_with_escapes,
        bytecode_cache=codes,
    )
    made.filters.update(
        ago=ago,
        moment=moment,
        span=span,
        clear=clear,
        shown_name=shown_name,
        shown=show_value,
        segment=segment,
        short_id=short_id,
        task_status=task_status,
    )
    made.filters.update(
        duration=units.duration, size=units.size, count=units.count, rate=units.rate, percent=units.percent
    )
    return made


@cache
def environment() -> jinja2.Environment:
    """One environment for all consoles of a process, with all templates compiled."""
    codes = CodeFile(code_path())
    made = new_environment(codes)
    for name in made.list_templates():
        made.get_template(name)
    codes.save()
    return made


def _with_escapes(value: Any) -> Any:
    """Escape invisible characters in every value of a template, including those that no filter was applied to."""
    return visible(value) if type(value) is str else value


if __name__ == "__main__":
    environment()
