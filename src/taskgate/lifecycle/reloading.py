"""Apply changes of the configuration while the gateway runs: on SIGHUP, when a file changes, and from the console."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Final

from taskgate import clock
from taskgate.assembly.app import App
from taskgate.assembly.exposure import check_exposure, warn_of_exposure
from taskgate.config.files import read_text
from taskgate.config.load import MAX_FILE_BYTES, LoadedConfig, load_again, may_have_references
from taskgate.config.problems import ConfigError
from taskgate.config.truncation import refuse_truncated
from taskgate.core.errors import TaskgateError
from taskgate.file_watching import changed_files
from taskgate.telemetry.logs import log

RETIRE_AFTER_S: Final = 30.0
CHANGE_CHECKS: Final = 10
CHANGE_CHECK_S: Final = 0.1


class Reloader:
    """Watches the files of a configuration and reloads it. An invalid file changes nothing."""

    def __init__(self, app: App, host: str) -> None:
        self._app = app
        self._host = host
        self._requested = asyncio.Event()
        self._explicitly = False
        """Whether a person or program requested the next reload, not only a changed file."""
        self._watch_changed = asyncio.Event()
        self._watching: tuple[frozenset[str], frozenset[str]] | None = None

    def request(self) -> None:
        """Reload soon, whether or not a file has changed."""
        self._explicitly = True
        self._requested.set()

    async def run(self) -> None:
        """Reload whenever it is requested or a file changes, until cancelled."""
        watching = asyncio.create_task(self._watch_for_changes())
        try:
            while True:
                await self._requested.wait()
                self._requested.clear()
                explicitly, self._explicitly = self._explicitly, False
                await self.reload(only_changes=not explicitly)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch_for_changes(self) -> None:
        while True:
            self._watch_changed.clear()
            if self._watching is not None:
                # For changes before the new watch, which begins before the next iteration of the loop and so before the reload.
                self._requested.set()
            self._watching = watched, folders = _watched(self._app.loaded)
            if not folders:
                await self._watch_changed.wait()
                continue
            async with aclosing(changed_files(folders, self._watch_changed)) as changes:
                async for changed in changes:
                    if any(path in watched or str(Path(path).parent) in watched for path in changed):
                        self._requested.set()

    async def _wait_until_written(self, path: Path) -> None:
        """Wait until the file is unchanged between two checks, for one second at most."""
        seen: tuple[int, int] | None = None
        for _ in range(CHANGE_CHECKS):
            try:
                found = await asyncio.to_thread(path.stat)
            except OSError:
                return
            if seen == (found.st_size, found.st_mtime_ns):
                return
            seen = (found.st_size, found.st_mtime_ns)
            await clock.sleep(CHANGE_CHECK_S)

    async def reload(self, *, only_changes: bool = False) -> str | None:
        """Apply the changed configuration. Return the problem if the old one stays in force.

        With `only_changes`, a configuration that equals the one in force is not applied again: a file that is written and
        then announced by SIGHUP is reported by both.
        """
        path = self._app.loaded.path
        if path is None:
            return "There is no configuration file to reload."
        hide = self._app.loaded.secret_values
        try:
            for file in (path, *map(Path, self._app.loaded.beside)):
                await self._wait_until_written(file)
            if only_changes and await asyncio.to_thread(_is_unchanged, self._app.loaded, path):
                return None
            loaded = await asyncio.to_thread(load_again, self._app.loaded)
            hide = loaded.secret_values
            if only_changes and await asyncio.to_thread(_is_same, loaded, self._app.loaded):
                # Nothing is applied, but a folder may have been created that is empty so far.
                self._watch(loaded)
                return None
            refuse_truncated(self._app.loaded, loaded)
            check_exposure(loaded.root, self._host)
            self._app.reload(loaded)
        except (ConfigError, TaskgateError, ValueError) as error:
            problems = hide.text(str(error))
            log.error("configuration not reloaded; the old one stays in force", problems=problems)
            return problems
        log.info("configuration reloaded", revision=self._app.plan.revision, registry=self._app.plan.registry.revision)
        log_warnings(loaded)
        warn_of_exposure(loaded.root, self._host)
        self._watch(loaded)
        asyncio.get_running_loop().call_later(RETIRE_AFTER_S, self._retire)
        return None

    def _watch(self, loaded: LoadedConfig) -> None:
        if _watched(loaded) != self._watching:
            log.info("watched folders changed")
            self._watch_changed.set()

    def _retire(self) -> None:
        self._retiring = asyncio.get_running_loop().create_task(self._app.close_retired())


def log_warnings(loaded: LoadedConfig) -> None:
    """Log the configuration's warnings and skipped servers."""
    for warning in loaded.warnings:
        log.warning("configuration", problem=str(warning))
    for skipped in loaded.skipped:
        log.warning("server skipped", server=skipped.server, reason=skipped.reason, detail=skipped.detail)


def _is_unchanged(loaded: LoadedConfig, path: Path) -> bool:
    """Whether a configuration that depends on nothing but its file has the same text. Loading thousands of rules takes longer."""
    depends_on_others = loaded.watch != (path,) or may_have_references(loaded.text)
    return not depends_on_others and read_text(path, MAX_FILE_BYTES) == loaded.text


_COMPARED: Final = tuple(name for name in LoadedConfig.__struct_fields__ if name not in ("secret_values", "consent"))


def _is_same(loaded: LoadedConfig, other: LoadedConfig) -> bool:
    """Whether two configurations have the same texts, and the same values of everything that they refer to."""
    return all(getattr(loaded, name) == getattr(other, name) for name in _COMPARED)


def _watched(loaded: LoadedConfig) -> tuple[frozenset[str], frozenset[str]]:
    """Return the files and folders that a configuration depends on, and the folders to watch for changes of them."""
    folders = {path if path.is_dir() else path.parent for path in loaded.watch}
    return frozenset(map(str, loaded.watch)), frozenset(str(folder) for folder in folders if folder.is_dir())
