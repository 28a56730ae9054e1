"""The configuration for the console: its text without secrets, trials of changed rules, and reload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import yaml

from taskgate.assembly.app import App
from taskgate.assembly.plan import build_plan
from taskgate.config.document import read_document
from taskgate.config.model.governance import Governance
from taskgate.config.problems import ConfigError
from taskgate.dashboard.configuration import ShownConfiguration
from taskgate.gateway.plan import Plan
from taskgate.lazy_dataclass import dataclass

MAX_TEXT: Final = 200_000


@dataclass(slots=True, eq=False)
class ConsoleConfiguration:
    """`app` returns the current app; `reload` reads the file again and returns its problem."""

    _app: Callable[[], App]
    _reload: Callable[[], Awaitable[str | None]]

    def shown(self) -> ShownConfiguration:
        loaded = self._app().loaded
        root = loaded.root.model_dump(mode="python", exclude_unset=True)
        problems = [str(problem) for problem in loaded.warnings]
        problems += [f"{skipped.server} skipped: {skipped.reason} ({skipped.detail})" for skipped in loaded.skipped]
        hide = loaded.secret_values
        return ShownConfiguration(str(loaded.path or ""), _yaml(hide.shown(root)), tuple(map(hide.text, problems)))

    def hidden(self, text: str) -> str:
        return self._app().loaded.secret_values.text(text)

    def governance(self) -> str:
        loaded = self._app().loaded
        return _yaml(loaded.secret_values.shown(loaded.root.governance.model_dump(mode="python", exclude_unset=True)))

    def plan_with(self, governance: str) -> Plan:
        if len(governance) > MAX_TEXT:
            raise ValueError(f"it is longer than {MAX_TEXT} characters")
        app = self._app()
        try:
            read_document(governance, "rules")  # rejects deep nesting and repetition, which would take seconds
            section = Governance.model_validate(yaml.safe_load(governance) or {})
            root = app.loaded.root.model_copy(update={"governance": section})
            return build_plan(replace(app.loaded, root=root), app.plan)
        except yaml.YAMLError as error:
            raise ValueError(f"not valid YAML: {error}") from None
        except ConfigError as error:
            raise ValueError(app.loaded.secret_values.text(str(error))) from None

    async def reload(self) -> str | None:
        return await self._reload()


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
