"""The text of a record, as it is in messages of failed checks and in tracebacks, shows no secrets."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import msgspec

import taskgate

SECRET = re.compile(
    r"(^|_)(secret|passphrase|password|verifier|sha256|authorization|cookie)$"
    r"|^token$|(access|refresh|bot|app|operator)_token$|^(script_|_)key$"
)
HIDDEN = {
    ("AccessToken", "headers"),
    ("Account", "key"),
    ("HttpProof", "every_header"),
    ("ScriptParts", "key"),
    ("ServerSpec", "sent_secrets"),
    ("WebhookSettings", "headers"),
}
"""Fields with secrets whose names do not show it."""


def structs() -> Iterator[type[msgspec.Struct]]:
    seen = set[type[msgspec.Struct]]()
    for module in pkgutil.walk_packages(taskgate.__path__, "taskgate."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError:  # an extra that is not installed
            continue
        for found in vars(loaded).values():
            if (
                isinstance(found, type)
                and issubclass(found, msgspec.Struct)
                and found.__module__.startswith("taskgate.")
            ):
                seen.add(found)
    yield from sorted(seen, key=lambda found: (found.__module__, found.__qualname__))


def secrets_of(kind: type[msgspec.Struct]) -> set[str]:
    texts = {
        name
        for base in kind.__mro__
        for name, annotation in vars(base).get("__annotations__", {}).items()
        if str(annotation).split(" | ")[0] in ("str", "bytes")
    }
    named = {name for name in texts if SECRET.search(name)}
    return named | {
        name for name in kind.__struct_fields__ if any((base.__name__, name) in HIDDEN for base in kind.__mro__)
    }


def test_text_of_a_record_shows_no_secret() -> None:
    checked, shown = set[tuple[str, str]](), []
    for kind in structs():
        if secret := secrets_of(kind):
            text = repr(kind(**{name: f"value of {name}." for name in kind.__struct_fields__}))
            assert text.startswith(f"{kind.__qualname__}(")
            checked |= {(kind.__name__, name) for name in secret}
            shown += [f"{kind.__module__}.{kind.__name__}.{name}" for name in secret if f"value of {name}." in text]
    assert len(checked) > 20
    assert checked >= HIDDEN
    assert shown == [], "hide it with `__repr__ = repr_without(...)` of taskgate.shown_fields"
