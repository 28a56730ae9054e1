"""HTTP towards upstreams: `HttpClient`, `Target`, and what an exchange gives or how it fails."""

from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.framing import SseEvent
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpHead, HttpReply
from taskgate.mcp.http.target import Origin, Target

__all__ = ["HttpClient", "HttpFailure", "HttpHead", "HttpReply", "Origin", "SseEvent", "Stage", "Target"]
