"""Compare how this version and another one read the generated files: `make config-equality BASE=COMMIT`.

python -m tests.config_equality.compare COMMIT [--show 20] [--ignore-values KEY.PATH ...]

Of problems, place and kind are compared, and with `--wording` the text, too.

The files come from the schema of the other version, so keys that are new here are in none of them. Prints each kind of difference
once, with the number of files and one of them, and fails if there is one. Values that only this version has are ignored.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from typing import Any

from tests.harness.other_version import ROOT, run_module, source_of

ANSWERS = "tests.config_equality.answers"
BUILD = ROOT / "build" / "config-equality"


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """The places where two answers differ, with both sides. What only the new one has is no difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [f"{path}.{key}: missing" for key in before.keys() - after.keys()]
        for key in sorted(before.keys() & after.keys()):
            found += differences(before[key], after[key], f"{path}.{key}" if path else key)
        if not path:
            found += [f"{key}: new" for key in after.keys() - before.keys()]
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [each for number, (old, new) in pairs for each in differences(old, new, f"{path}[{number}]")]
    return (
        []
        if before == after and type(before) is type(after)
        else [f"{path}: {json.dumps(before)} -> {json.dumps(after)}"]
    )


def without_wording(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with place and kind of its problems, without their texts."""
    named = {
        name: [place_and_kind[:2] for place_and_kind in answer[name]]
        for name in ("problems", "warnings")
        if name in answer
    }
    return answer | named


def compared(
    before: str, after: str, ignored: frozenset[str], *, wording: bool = False
) -> tuple[int, int, dict[str, list[str]]]:
    """How many files both accept and both refuse, and the files with each kind of difference."""
    accepted = refused = 0
    found: dict[str, list[str]] = defaultdict(list)
    for old, new in zip(before.splitlines(), after.splitlines(), strict=True):
        was, is_now = json.loads(old), json.loads(new)
        if not wording:
            was, is_now = without_wording(was), without_wording(is_now)
        text = was.pop("file")
        assert is_now.pop("file") == text
        kinds = [one for one in differences(was, is_now) if one.partition(":")[0] not in ignored]
        for kind in kinds:
            found[kind].append(text)
        if not kinds:
            accepted += "values" in was
            refused += "problems" in was
    return accepted, refused, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("commit")
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--ignore-values", nargs="*", default=[], help="for example values.limits.json_depth")
    parser.add_argument("--wording", action="store_true", help="compare the texts of problems, too")
    options = parser.parse_args()
    other = source_of(options.commit)
    BUILD.mkdir(parents=True, exist_ok=True)
    schema = BUILD / f"{options.commit}.json"
    schema.write_text(run_module(other, ANSWERS, "--schema"))
    answers = BUILD / f"{options.commit}.jsonl"
    if not answers.exists():
        answers.write_text(run_module(other, ANSWERS, schema))
    before, after = answers.read_text(), run_module(ROOT / "src", ANSWERS, schema)
    accepted, refused, found = compared(before, after, frozenset(options.ignore_values), wording=options.wording)
    for kind, texts in sorted(found.items(), key=lambda each: -len(each[1]))[: options.show]:
        print(f"{len(texts):6} files: {kind}\n        {texts[0][:300]}")
    print(f"equal: {accepted} accepted, {refused} refused; different in {len(found)} ways")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
