"""A host of skills on FastMCP 4.1: lists what a server has, fetches every entry, reads every file, and prints what it saw."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any

from fastmcp import Client
from fastmcp.skills import SkillsClientExtension


async def main(url: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    async with Client(url, extensions=[SkillsClientExtension()]) as client:
        for skill in await client.list_skills():
            assert (await client.get_skill(skill.uri)).resources == skill.resources
            files = {}
            for file in skill.resources:
                (content,) = await client.read_resource(file.uri)
                digest = hashlib.sha256(content.text.encode()).hexdigest()
                files[file.uri] = {"verified": file.digest == f"sha256:{digest}", "text": content.text}
            seen[skill.uri] = files
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
