"""What the console may know and do about the configuration: show it without secrets, try another part, read it again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import yaml
from pydantic import SecretStr

from taskgate.assembly.build import App
from taskgate.assembly.plan import build_plan
from taskgate.config.governance import Governance
from taskgate.config.problems import ConfigError
from taskgate.dashboard.configuration import ShownConfiguration
from taskgate.gateway.plan.plan import Plan

HIDDEN: Final = "[hidden]"
MOST_TEXT: Final = 200_000
_SECRET_WORDS: Final = ("secret", "token", "password", "passphrase", "key", "authorization", "sha256")


class ConsoleConfiguration:
    """`app` gives the app in force; `reload` reads the file again and says what is wrong with it."""

    def __init__(self, app: Callable[[], App], reload: Callable[[], Awaitable[str | None]]) -> None:
        self._app = app
        self._reload = reload

    def shown(self) -> ShownConfiguration:
        loaded = self._app().loaded
        root = loaded.root.model_dump(mode="python", exclude_unset=True)
        problems = [str(problem) for problem in loaded.warnings]
        problems += [f"{gone.server} is left out: {gone.reason} ({gone.detail})" for gone in loaded.left_out]
        return ShownConfiguration(str(loaded.path or ""), _yaml(_safe(root)), tuple(problems))

    def governance(self) -> str:
        section = self._app().loaded.root.governance
        return _yaml(_safe(section.model_dump(mode="python", exclude_unset=True)))

    def plan_with(self, governance: str) -> Plan:
        if len(governance) > MOST_TEXT:
            raise ValueError(f"it is longer than {MOST_TEXT} characters")
        app = self._app()
        try:
            section = Governance.model_validate(yaml.safe_load(governance) or {})
            root = app.loaded.root.model_copy(update={"governance": section})
            return build_plan(replace(app.loaded, root=root), app.plan)
        except yaml.YAMLError as error:
            raise ValueError(f"this is not YAML: {error}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ConfigError as error:
            raise ValueError(str(error)) from None

    async def reload(self) -> str | None:
        return await self._reload()


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def _safe(value: Any, name: str = "") -> Any:
    """Plain values, with everything hidden that is a secret by its type or its name."""
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, dict):
        named = name in ("headers", "env")
        return {
            str(key): HIDDEN if named or _is_secret(str(key), item) else _safe(item, str(key))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe(item, name) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _text(value)


def _is_secret(key: str, value: Any) -> bool:
    return isinstance(value, str | SecretStr) and any(word in key.lower() for word in _SECRET_WORDS)


def _text(value: Any) -> str:
    """Addresses may hold a password between the scheme and the host."""
    text = str(value)
    scheme, mark, rest = text.partition("://")
    before, at, after = rest.partition("@")
    return f"{scheme}://{HIDDEN}@{after}" if mark and at and "/" not in before else text
