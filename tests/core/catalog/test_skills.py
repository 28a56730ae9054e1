"""Entries of skills: which are valid, how their addresses are rewritten, and whether a file agrees with its entry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.core import wire
from taskgate.core.catalog.entry import EntryKind, read_entries, skill_fault
from taskgate.core.catalog.pin_keys import kind_of, skill_key
from taskgate.core.catalog.pinned_content import sha256_of
from taskgate.core.catalog.skills import (
    ORIGIN,
    SKILLS_EXTENSION,
    InvalidSkill,
    Skill,
    SkillFile,
    children,
    declares_skills,
    mismatch,
    read_skill,
    reads_directories,
    rewritten_entry,
    skill_resource,
)

URI = "skill://acme/refunds/SKILL.md"
FILES = {"SKILL.md": b"# Refunds", "references/POLICY.md": b"Thirty days.", "scripts/run.sh": b"true"}


def entry(**more: Any) -> dict[str, Any]:
    files = [
        {"uri": f"skill://acme/refunds/{name}", "digest": sha256_of(body), "size": len(body)}
        for name, body in FILES.items()
    ]
    frontmatter = {"name": "refunds", "description": "How to refund", "license": "MIT"}
    return {"uri": URI, "frontmatter": frontmatter, "resources": files, **more}


def test_a_valid_entry_is_read() -> None:
    skill = read_skill(entry())
    assert (skill.uri, skill.name, skill.description, skill.root) == (
        URI,
        "refunds",
        "How to refund",
        "skill://acme/refunds",
    )
    assert [file.uri.removeprefix("skill://acme/refunds/") for file in skill.files or ()] == list(FILES)
    assert skill.size == len(FILES["SKILL.md"])
    single = {"uri": "skill://refunds/SKILL.md", "resources": "dynamic"}
    dynamic = read_skill(entry(**single))
    assert (dynamic.files, dynamic.size) == (None, None)


def changed(number: int, **more: Any) -> list[Any]:
    files = list(entry()["resources"])
    files[number] = {**files[number], **more}
    return files


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"uri": None}, "uri"),
        ({"uri": "skill://acme/refunds/README.md"}, "uri"),
        ({"uri": "refunds/SKILL.md"}, "uri"),
        ({"uri": "skill://acme/other/SKILL.md"}, "name of the skill"),
        ({"frontmatter": None}, "no frontmatter"),
        ({"frontmatter": {"name": "refunds"}}, "no description"),
        ({"frontmatter": {"name": 7, "description": "x"}}, "no name"),
        ({"frontmatter": {"name": "", "description": "x"}, "uri": "skill:///SKILL.md"}, "name of the skill"),
        ({"resources": None}, "neither a list"),
        ({"resources": "static"}, "neither a list"),
        ({"resources": []}, "not list its SKILL.md"),
        ({"resources": entry()["resources"][1:]}, "not list its SKILL.md"),
        ({"resources": entry()["resources"] * 2}, "twice"),
        ({"resources": [7]}, "not in its folder"),
        ({"resources": changed(1, uri="skill://acme/other/x.md")}, "not in its folder"),
        ({"resources": changed(1, uri="skill://acme/refunds/")}, "not in its folder"),
        ({"resources": changed(1, digest="sha256:ABC")}, "digest"),
        ({"resources": changed(1, digest=None)}, "digest"),
        ({"resources": changed(1, size=-1)}, "size"),
        ({"resources": changed(1, size=True)}, "size"),
        ({"resources": changed(1, size=1.5)}, "size"),
    ],
)
def test_an_entry_that_breaks_a_rule_is_refused_with_the_rule(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSkill, match=why):
        read_skill(entry(**more))


def test_a_file_is_compared_by_size_and_digest() -> None:
    file = SkillFile("skill://x/a", sha256_of(b"abc"), 3)
    assert mismatch(file, b"abc") is None
    assert "4 bytes" in (mismatch(file, b"abcd") or "")
    assert "digest" in (mismatch(file, b"abd") or "")


def test_every_address_of_an_entry_is_rewritten_and_nothing_else() -> None:
    raw = wire.raw(entry(vendor={"x": 1}))
    made = json.loads(rewritten_entry(raw, lambda uri: uri.replace("skill://", "skill://b.taskgate/"), "b"))
    assert made["uri"] == "skill://b.taskgate/acme/refunds/SKILL.md"
    assert [file["uri"] for file in made["resources"]] == [f"skill://b.taskgate/acme/refunds/{name}" for name in FILES]
    assert [file["digest"] for file in made["resources"]] == [file["digest"] for file in entry()["resources"]]
    assert made["frontmatter"] == entry()["frontmatter"]
    assert (made["vendor"], made["_meta"]) == ({"x": 1}, {ORIGIN: "b"})
    assert read_skill(made).name == "refunds"
    same = rewritten_entry(wire.raw(entry(_meta={"a/b": 1}, resources="dynamic")), lambda uri: uri, None)
    assert json.loads(same) == entry(_meta={"a/b": 1}, resources="dynamic")
    labelled = rewritten_entry(wire.raw(entry(_meta={"a/b": 1})), lambda uri: uri, "b")
    assert json.loads(labelled)["_meta"] == {"a/b": 1, ORIGIN: "b"}


def test_a_skill_is_a_plain_resource_for_callers_without_the_extension() -> None:
    assert skill_resource(read_skill(entry()), URI) == {
        "uri": URI,
        "name": "refunds",
        "description": "How to refund",
        "mimeType": "text/markdown",
        "size": 9,
    }
    assert "size" not in skill_resource(Skill(URI, "refunds", "x", None), URI)


def test_a_folder_is_read_from_the_files_that_an_entry_lists() -> None:
    files = read_skill(entry()).files or ()
    assert children(files, "skill://acme/refunds") == [
        {"uri": URI, "name": "SKILL.md", "mimeType": "text/markdown", "size": 9},
        {"uri": "skill://acme/refunds/references", "name": "references", "mimeType": "inode/directory"},
        {"uri": "skill://acme/refunds/scripts", "name": "scripts", "mimeType": "inode/directory"},
    ]
    assert children(files, "skill://acme/refunds/scripts") == [
        {
            "uri": "skill://acme/refunds/scripts/run.sh",
            "name": "run.sh",
            "mimeType": "application/x-sh",
            "size": 4,
        }
    ]
    odd = children([SkillFile("skill://x/odd", "", 1)], "skill://x")
    assert odd == [{"uri": "skill://x/odd", "name": "odd", "mimeType": "application/octet-stream", "size": 1}]
    assert children(files, URI) is None
    assert children(files, "skill://acme/refunds/nothing") is None


@pytest.mark.parametrize(
    ("settings", "skills", "directories"),
    [
        ({}, True, False),
        ({"directoryRead": True}, True, True),
        ({"directoryRead": "yes"}, True, False),
        (True, False, False),
    ],
)
def test_servers_declare_skills_and_reading_of_folders(settings: Any, skills: bool, directories: bool) -> None:
    capabilities = {"extensions": {SKILLS_EXTENSION: settings}}
    assert (declares_skills(capabilities), reads_directories(capabilities)) == (skills, directories)
    assert not declares_skills({})
    assert not reads_directories({})


def test_lists_have_valid_skills_and_faults_name_the_others() -> None:
    listed = wire.raw([entry(), entry(resources=None), {"uri": 7}, 7])
    (found,) = read_entries(EntryKind.SKILL, "shop", listed)
    assert (found.server, found.name, found.skill.name) == ("shop", URI, "refunds")
    assert found.skill is found.skill
    faults = [skill_fault(raw) for raw in wire.elements_of(listed)]
    assert faults[0] is None
    assert faults[1] is not None
    assert faults[1].startswith(f"{URI}: ")
    assert None not in faults[2:]


def test_pins_of_skills_are_named_by_their_kind() -> None:
    assert kind_of(skill_key(URI)) == "skill"
