"""What one version makes of the generated files, one JSON line for each: the values in force, or the problems.

python -m tests.config_equality.answers SCHEMA.json > ANSWERS.jsonl; python -m tests.config_equality.answers --schema > SCHEMA.json
Run with the version in question on PYTHONPATH. It uses nothing but `load_text`, `ConfigError` and `model_dump_json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.config_equality.generated_files import files

from taskgate.config.json_schema import configuration_schema
from taskgate.config.load import load_text
from taskgate.config.problems import ConfigError

ENVIRONMENT = {"HOME": "/home/ann", "TASKGATE_STATE_DIR": "/nowhere/state"}
FOLDER = Path("/nowhere")


def shown(problem: object) -> str:
    """The text of a problem, without the list of known keys, which grows with every new key."""
    before, found, _ = str(problem).partition("; known keys: ")
    return before + found


def answer(text: str) -> dict[str, object]:
    try:
        loaded = load_text(text, "taskgate.yaml", FOLDER, ENVIRONMENT)
    except ConfigError as error:
        return {"problems": sorted(map(shown, error.problems))}
    skipped = [[one.server, one.reason, one.detail] for one in loaded.skipped]
    return {
        "values": json.loads(loaded.root.model_dump_json()),
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
