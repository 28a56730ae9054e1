"""The clients of the matrix: which environment each needs, its program, and how it is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.absent import HOME
from tests.harness.peers import interpreter

PROGRAMS = Path(__file__).resolve().parent / "programs"


@dataclass(frozen=True, slots=True)
class Client:
    """One library in one version, in the generation that it uses."""

    name: str
    peer: str
    program: str
    generation: str = "2025"
    in_tests: bool = False
    can_be_asked: bool = True
    """Whether the library has a handler for questions of servers."""
    sends_cancellation: bool = True
    """Whether the library sends a cancellation when its caller abandons a call."""
    side_by_side: bool = True
    """Whether the library sends a second call while a first one is open."""
    cannot_have: frozenset[str] = frozenset()
    """Tools that the library leaves out of every list, because it has a method of that name."""
    scenes: tuple[str, ...] = ("listed", "typed", "promoted", "held", "asked", "cancelled")

    def command(self, *, url: str | None = None, server: Sequence[str] = ()) -> list[str]:
        where = ["--url", url] if url else ["--command", json.dumps(list(server))]
        program = [str(self._interpreter()), str(PROGRAMS / self.program)]
        return [*program, *where, "--generation", self.generation]

    def _interpreter(self) -> Path:
        if self.program.endswith(".mjs"):
            return HOME / "node"
        # The Inspector is a separate program, driven by ours.
        return Path(sys.executable) if self.peer == "inspector" else interpreter(self.peer)


AS_TOOLS = ("listed", "typed", "promoted", "held", "asked")
"""For frameworks that turn a list into tools of their own kind. How their agents give up a call is not MCP's business."""

CLIENTS = (
    Client("TypeScript SDK 1.32", "ts1", "ts1.mjs", in_tests=True),
    Client("TypeScript SDK 2.4 as 2025", "ts2", "ts2.mjs", in_tests=True),
    Client("TypeScript SDK 2.4 as 2026", "ts2", "ts2.mjs", "2026", in_tests=True),
    Client("mcp 1.30", "mcp130", "mcp130.py", in_tests=True, sends_cancellation=False),
    Client("mcp 2.3 as 2025", "mcp23", "mcp23.py", in_tests=True),
    Client("mcp 2.3 as 2026", "mcp23", "mcp23.py", "2026", in_tests=True),
    Client("FastMCP 2.14", "fastmcp214", "fastmcp_client.py", sends_cancellation=False),
    Client("FastMCP 4.1 as 2025", "fastmcp", "fastmcp_client.py"),
    Client("FastMCP 4.1 as 2026", "fastmcp", "fastmcp_client.py", "2026"),
    Client("Inspector CLI", "inspector", "inspector_cli.py", can_be_asked=False, sends_cancellation=False),
    Client("pydantic-ai", "pydantic-ai", "pydantic_ai_client.py"),
    Client("openai-agents", "openai-agents", "openai_agents_client.py", can_be_asked=False, side_by_side=False),
    Client("langchain", "langchain", "langchain_client.py"),
    Client("llama-index", "llama-index", "llama_index_client.py", can_be_asked=False),
    Client("smolagents", "smolagents", "smolagents_client.py", can_be_asked=False, sends_cancellation=False),
    Client("AutoGen", "autogen", "autogen_client.py", can_be_asked=False, scenes=AS_TOOLS),
    Client("Google ADK", "google-adk", "google_adk_client.py", scenes=AS_TOOLS),
    Client(
        "semantic-kernel",
        "semantic-kernel",
        "semantic_kernel_client.py",
        can_be_asked=False,
        cannot_have=frozenset({"get_prompt"}),
        scenes=AS_TOOLS,
    ),
    Client("crewai", "crewai", "crewai_client.py", can_be_asked=False, scenes=AS_TOOLS),
    Client("strands", "strands", "strands_client.py", scenes=AS_TOOLS),
    Client("haystack", "haystack", "haystack_client.py", can_be_asked=False, scenes=AS_TOOLS),
    Client("dspy", "dspy", "dspy_client.py", scenes=AS_TOOLS),
    Client("mcp-agent", "mcp-agent", "mcp_agent_client.py", scenes=AS_TOOLS),
    Client("agno", "agno", "agno_client.py", can_be_asked=False, scenes=AS_TOOLS),
    Client("mcp-use", "mcp-use", "mcp_use_client.py", scenes=AS_TOOLS),
    Client("AI SDK", "ai-sdk", "ai_sdk.mjs", scenes=AS_TOOLS),
    Client("Mastra", "mastra", "mastra.mjs", scenes=AS_TOOLS),
    Client("LangChain JS", "langchain-js", "langchain.mjs", can_be_asked=False, scenes=AS_TOOLS),
)
