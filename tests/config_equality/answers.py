"""What one version makes of the generated files, one JSON line for each: the values in force, or the problems.

python -m tests.config_equality.answers SCHEMA.json > ANSWERS.jsonl; python -m tests.config_equality.answers --schema > SCHEMA.json
Run with the version in question on PYTHONPATH. It uses nothing but `load_text`, `ConfigError`, and `model_dump_json` of versions
whose sections had it. Its form is compared: durations in ISO 8601, keys by the names of attributes.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.config_equality.generated_files import files

from taskgate.config.json_schema import configuration_schema
from taskgate.config.load import load_text
from taskgate.config.problems import ConfigError, Problem

ENVIRONMENT = {"HOME": "/home/ann", "TASKGATE_STATE_DIR": "/nowhere/state"}
FOLDER = Path("/nowhere")


def values_of(root: Any) -> Any:
    """The values of a configuration, as the versions before wrote them."""
    if hasattr(root, "model_dump_json"):
        return json.loads(root.model_dump_json())
    from taskgate.core.settings.section import DURATION, Section, members

    tag = {"type": root.type} if root.__struct_config__.tag_field else {}
    section: type[Section] = type(root)
    values = {each.name: (each.value_in(root), each) for each in members(section)}
    return tag | {
        name: iso_duration(value)
        if value is not None and any(meta.extra_json_schema == DURATION for meta in each.attached)
        else ["*" * 10 for _ in value]
        if (type(root).__name__, name) == ("Store", "key")
        else plain(value)
        for name, (value, each) in values.items()
    }


def plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case tuple():
            return [plain(each) for each in value]
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case Struct():
            return values_of(value)
        case _:
            return value


def iso_duration(seconds: float) -> str:
    """A duration as ISO 8601 text, for example `PT10M`."""
    whole, micro = divmod(round(seconds * 1_000_000), 1_000_000)
    days, whole = divmod(whole, 86_400)
    years, days = divmod(days, 365)
    hours, whole = divmod(whole, 3_600)
    minutes, whole = divmod(whole, 60)
    second = f"{whole}.{micro:06d}".rstrip("0") if micro else str(whole or "")
    date = "".join(f"{count}{unit}" for count, unit in ((years, "Y"), (days, "D")) if count)
    time = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M"), (second, "S")) if count)
    return f"P{date}{'T' if time else ''}{time}" if date or time else "PT0S"


KINDS = {
    "unknown key": "unknown key",
    "required key is missing": "missing key",
    "is not one of": "word",
    "must be one of": "word",
    "there is no": "reference",
}


def shown(problem: Problem) -> list[str]:
    """Place and kind of a problem, and its text without the list of known keys, which grows with every new key."""
    kind = next((kind for words, kind in KINDS.items() if words in problem.message), "value")
    place = f"{problem.file}:{problem.line}:{problem.column}: {problem.key}"
    return [place, kind, f"{problem.message}; {problem.hint.partition('known keys: ')[0]}"]


def answer(text: str) -> dict[str, object]:
    try:
        loaded = load_text(text, "taskgate.yaml", FOLDER, ENVIRONMENT)
    except ConfigError as error:
        return {"problems": sorted(map(shown, error.problems))}
    skipped = [[one.server, one.reason, one.detail] for one in loaded.skipped]
    return {
        "values": values_of(loaded.root),
        "warnings": sorted(map(shown, loaded.warnings)),
        "skipped": skipped,
    }


def main() -> None:
    if sys.argv[1:] == ["--schema"]:
        print(json.dumps(configuration_schema()))
        return
    for tree in files(json.loads(Path(sys.argv[1]).read_text())):
        text = json.dumps(tree)
        print(json.dumps({"file": text, **answer(text)}, sort_keys=True))


if __name__ == "__main__":
    main()
