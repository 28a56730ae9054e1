"""Skills (`io.modelcontextprotocol/skills`, SEP-2640): entries of `skills/list`, and the check of files against them.

An entry has the URI of `SKILL.md`, its frontmatter, and every file of its folder with size and digest; or `dynamic` in
place of the files, for a skill whose content is generated for each reader. An invalid entry is not passed on, because
clients reject a whole list for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.addresses import folders_above
from taskgate.core.catalog.apps import extension_settings
from taskgate.core.catalog.pinned_content import sha256_of
from taskgate.core.meta import META
from taskgate.core.wire import Members, Raw

SKILLS_EXTENSION: Final = "io.modelcontextprotocol/skills"
SKILL_FILE: Final = "/SKILL.md"
DIRECTORY_MIME: Final = "inode/directory"
MARKDOWN: Final = "text/markdown"
DYNAMIC: Final = "dynamic"
ORIGIN: Final = "taskgate/server"
"""Key of `_meta` in an entry for the server of the skill."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TYPES: Final = {
    ".md": MARKDOWN,
    ".txt": "text/plain",
    ".json": "application/json",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".html": "text/html",
    ".py": "text/x-python",
    ".js": "text/javascript",
    ".sh": "application/x-sh",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".pdf": "application/pdf",
}


class InvalidSkill(ValueError):
    """An entry that violates the specification; the message names the rule."""


class SkillFile(msgspec.Struct, frozen=True):
    uri: str
    digest: str
    size: int


class Skill(msgspec.Struct, frozen=True):
    """`files` is None for dynamic content."""

    uri: str
    name: str
    description: str
    files: tuple[SkillFile, ...] | None

    @property
    def root(self) -> str:
        """The URI of its folder."""
        return self.uri.removesuffix(SKILL_FILE)

    @property
    def size(self) -> int | None:
        """The size of its SKILL.md."""
        return next((file.size for file in self.files or () if file.uri == self.uri), None)


def declares_skills(capabilities: Mapping[str, Any]) -> bool:
    return extension_settings(capabilities, SKILLS_EXTENSION) is not None


def reads_directories(capabilities: Mapping[str, Any]) -> bool:
    settings = extension_settings(capabilities, SKILLS_EXTENSION)
    return settings is not None and settings.get("directoryRead") is True


def read_skill(entry: Mapping[str, Any]) -> Skill:
    """Parse one entry of `skills/list`. Raises InvalidSkill."""
    uri, frontmatter = entry.get("uri"), entry.get("frontmatter")
    if not isinstance(uri, str) or "://" not in uri or not uri.endswith(SKILL_FILE):
        raise InvalidSkill("its uri is not that of a SKILL.md")
    if not isinstance(frontmatter, Mapping):
        raise InvalidSkill("it has no frontmatter")
    name, description = frontmatter.get("name"), frontmatter.get("description")
    if not isinstance(name, str) or not isinstance(description, str):
        raise InvalidSkill("its frontmatter has no name or no description")
    root = uri.removesuffix(SKILL_FILE)
    if not name or root.partition("://")[2].rpartition("/")[2] != name:
        raise InvalidSkill("its folder does not have the name of the skill")
    return Skill(uri, name, description, _files(entry.get("resources"), uri, root))


def _files(resources: Any, uri: str, root: str) -> tuple[SkillFile, ...] | None:
    if resources == DYNAMIC:
        return None
    if not isinstance(resources, list):
        raise InvalidSkill('its resources are neither a list nor "dynamic"')
    files = tuple(_file(resource, root) for resource in resources)
    names = [file.uri for file in files]
    if len(set(names)) != len(names):
        raise InvalidSkill("it lists a file twice")
    if uri not in names:
        raise InvalidSkill("it does not list its SKILL.md")
    return files


def _file(resource: Any, root: str) -> SkillFile:
    resource = resource if isinstance(resource, Mapping) else {}
    uri, digest, size = resource.get("uri"), resource.get("digest"), resource.get("size")
    if not isinstance(uri, str) or not uri.startswith(f"{root}/") or uri.endswith("/"):
        raise InvalidSkill("it lists a file that is not in its folder")
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise InvalidSkill("the digest of a file is not sha256: and 64 hexadecimal digits")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidSkill("the size of a file is not a whole number")
    return SkillFile(uri, digest, size)


def mismatch(file: SkillFile, content: bytes) -> str | None:
    """Return how a file differs from its entry; None if it does not."""
    if len(content) != file.size:
        return f"it has {len(content)} bytes instead of {file.size}"
    digest = sha256_of(content)
    return None if digest == file.digest else f"its digest is {digest} instead of {file.digest}"


def rewritten_entry(raw: Raw, address: Callable[[str], str], origin: str | None) -> bytes:
    """Return an entry with the URIs that callers use. Digests are unchanged: they cover the bytes of the files."""
    members = wire.members_of(raw)
    members["uri"] = _rewritten(members["uri"], address)
    if bytes(members["resources"])[:1] == b"[":
        files: list[Raw] = []
        for file in wire.elements_of(members["resources"]):
            inner = wire.members_of(file)
            files.append(Raw(wire.join({**inner, "uri": _rewritten(inner["uri"], address)})))
        members["resources"] = wire.raw(files)
    if origin is not None:
        meta: Members = wire.members_of(members[META]) if bytes(members.get(META, b""))[:1] == b"{" else {}
        members[META] = Raw(wire.join({**meta, ORIGIN: wire.raw(origin)}))
    return wire.join(members)


def _rewritten(uri: Raw, address: Callable[[str], str]) -> Raw:
    return wire.raw(address(wire.parse_strictly(bytes(uri))))


def skill_resource(skill: Skill, shown: str) -> dict[str, Any]:
    """Return a skill as a plain resource, for callers without the extension."""
    resource: dict[str, Any] = {
        "uri": shown,
        "name": skill.name,
        "description": skill.description,
        "mimeType": MARKDOWN,
    }
    return resource if skill.size is None else {**resource, "size": skill.size}


def children(files: Iterable[SkillFile], folder: str) -> list[dict[str, Any]] | None:
    """Return the direct content of a folder, by the files that a skill lists; None if there is no such folder."""
    inside = [file for file in files if folder in folders_above(file.uri)[:-1]]
    found: dict[str, dict[str, Any]] = {}
    for file in inside:
        name, slash, _ = file.uri[len(folder) + 1 :].partition("/")
        uri = f"{folder}/{name}"
        if slash:
            found[uri] = {"uri": uri, "name": name, "mimeType": DIRECTORY_MIME}
        else:
            ending = f".{name.rpartition('.')[2].lower()}"
            kind = _TYPES.get(ending, "application/octet-stream")
            found[uri] = {"uri": uri, "name": name, "mimeType": kind, "size": file.size}
    return list(found.values()) if inside else None
