"""The HTTP client: `HttpClient`, `Target`, replies and failures."""

from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpHead, HttpReply
from taskgate.mcp.http.target import Origin, Target
from taskgate.mcp.sse import SseEvent

__all__ = ["HttpClient", "HttpFailure", "HttpHead", "HttpReply", "Origin", "SseEvent", "Stage", "Target"]
