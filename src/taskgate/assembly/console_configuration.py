"""The configuration for the console: its text without secrets, trials of changed rules, and reload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import yaml
from msgspec.structs import replace

from taskgate.assembly.app import App
from taskgate.assembly.plan import build_plan
from taskgate.config.document import read_document
from taskgate.config.problems import ConfigError
from taskgate.config.validation import validated
from taskgate.core.settings.governance import Governance
from taskgate.core.settings.section import as_written
from taskgate.dashboard.configuration import ShownConfiguration
from taskgate.gateway.plan import Plan

MAX_TEXT: Final = 200_000


class ConsoleConfiguration(msgspec.Struct, eq=False):
    """`app` returns the current app; `reload` reads the file again and returns its problem."""

    _app: Callable[[], App]
    _reload: Callable[[], Awaitable[str | None]]

    def shown(self) -> ShownConfiguration:
        loaded = self._app().loaded
        root = as_written(loaded.root)
        problems = [str(problem) for problem in loaded.warnings]
        problems += [f"{skipped.server} skipped: {skipped.reason} ({skipped.detail})" for skipped in loaded.skipped]
        hide = loaded.secret_values
        return ShownConfiguration(str(loaded.path or ""), _yaml(hide.shown(root)), tuple(map(hide.text, problems)))

    def hidden(self, text: str) -> str:
        return self._app().loaded.secret_values.text(text)

    def governance(self) -> str:
        loaded = self._app().loaded
        return _yaml(loaded.secret_values.shown(as_written(loaded.root.governance)))

    def plan_with(self, governance: str) -> Plan:
        if len(governance) > MAX_TEXT:
            raise ValueError(f"it is longer than {MAX_TEXT} characters")
        app = self._app()
        try:
            section, problems = validated(Governance, read_document(governance, "rules"), ("governance",))
            if section is None:
                raise ConfigError(problems)
            root = replace(app.loaded.root, governance=section)
            return build_plan(replace(app.loaded, root=root), app.plan)
        except ConfigError as error:
            raise ValueError(app.loaded.secret_values.text(str(error))) from None

    async def reload(self) -> str | None:
        return await self._reload()


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
