"""A scripted server with skills (SEP-2640)."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from tests.virtual_time import Call, Failure, Upstream

SKILLS = "io.modelcontextprotocol/skills"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def skill_md(name: str, description: str, text: str = "Do it.") -> bytes:
    return f"---\nname: {name}\ndescription: {description}\n---\n{text}\n".encode()


class SkillServer(Upstream):
    """`files` are what it serves, by address; `entries` are the entries of its skills, by the address of their SKILL.md."""

    def __init__(self, generation: str = "2026", *, directories: bool = False, listed: bool = False) -> None:
        settings = {"directoryRead": True} if directories else {}
        super().__init__(
            generation, capabilities={"resources": {"listChanged": True}, "extensions": {SKILLS: settings}}
        )
        self.files: dict[str, bytes] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.unlisted: set[str] = set()
        self.lists_files = listed
        self.plain: list[str] = []
        for method, handler in (
            ("skills/list", self._skills),
            ("skills/get", self._skill),
            ("resources/list", self._resources),
            ("resources/templates/list", self._templates),
            ("resources/read", self._read),
        ):
            self.on(method, handler)
        if directories:
            self.on("resources/directory/read", self._directory)

    def skill(self, root: str, description: str = "Helps", files: dict[str, bytes] | None = None, **entry: Any) -> str:
        """Offer a skill; the address of its SKILL.md."""
        name = root.rpartition("/")[2]
        uri = f"{root}/SKILL.md"
        own = {uri: skill_md(name, description, f"of {root}")}
        own |= {f"{root}/{path}": body for path, body in (files or {}).items()}
        self.files |= own
        self.entries[uri] = {
            "uri": uri,
            "frontmatter": {"name": name, "description": description},
            "resources": [{"uri": u, "digest": digest(body), "size": len(body)} for u, body in own.items()],
            **entry,
        }
        return uri

    async def _skills(self, call: Call) -> dict[str, Any]:
        shown = [entry for uri, entry in self.entries.items() if uri not in self.unlisted]
        return {"skills": shown, "ttlMs": 0, "cacheScope": "public"}

    async def _skill(self, call: Call) -> dict[str, Any]:
        entry = self.entries.get(call.params["uri"])
        if entry is None:
            raise Failure(-32602, "no such skill")
        return {"skill": entry, "ttlMs": 60_000, "cacheScope": "public"}

    async def _resources(self, _call: Call) -> dict[str, Any]:
        uris = [*self.plain, *(self.entries if self.lists_files else ())]
        return {"resources": [{"uri": uri, "name": "listed", "mimeType": "text/markdown"} for uri in uris]}

    async def _templates(self, _call: Call) -> dict[str, Any]:
        return {"resourceTemplates": []}

    async def _read(self, call: Call) -> dict[str, Any]:
        uri = call.params["uri"]
        body = self.files.get(uri)
        if body is None:
            raise Failure(-32602, "no such file")
        try:
            return {"contents": [{"uri": uri, "text": body.decode()}]}
        except UnicodeDecodeError:
            return {"contents": [{"uri": uri, "blob": base64.b64encode(body).decode()}]}

    async def _directory(self, call: Call) -> dict[str, Any]:
        folder = call.params["uri"]
        names = {uri[len(folder) + 1 :].partition("/") for uri in self.files if uri.startswith(f"{folder}/")}
        if not names:
            raise Failure(-32602, "not a folder")
        rows = {
            f"{folder}/{name}": {"mimeType": "inode/directory" if slash else "text/plain"} for name, slash, _ in names
        }
        return {"resources": [{"uri": uri, "name": uri, **row} for uri, row in sorted(rows.items())]}

    def asked(self, method: str) -> int:
        return sum(message.get("method") == method for message in self.received)
