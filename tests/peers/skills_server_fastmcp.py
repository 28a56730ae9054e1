"""A server with skills on FastMCP 4.1: those in the folder that is its first argument, on standard streams or on a port."""

from __future__ import annotations

import sys
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.extension import SkillsExtension

provider = SkillsDirectoryProvider(roots=Path(sys.argv[1]), experimental_skills=True)
server = FastMCP("fastmcp-skills")
server.add_provider(provider)
server.add_extension(SkillsExtension(providers=[provider]))


@server.tool
def hello() -> str:
    return "hello"


if __name__ == "__main__":
    if sys.argv[2:]:
        server.run("http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False)
    else:
        server.run(show_banner=False)
