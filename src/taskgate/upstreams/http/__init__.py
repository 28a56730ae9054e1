"""HTTP towards upstreams: `HttpClient`, `Target`, and what an exchange gives or how it fails."""

from taskgate.core.sse import SseEvent
from taskgate.upstreams.http.client import HttpClient
from taskgate.upstreams.http.failure import HttpFailure, Stage
from taskgate.upstreams.http.reply import HttpHead, HttpReply
from taskgate.upstreams.http.target import Origin, Target

__all__ = ["HttpClient", "HttpFailure", "HttpHead", "HttpReply", "Origin", "SseEvent", "Stage", "Target"]
