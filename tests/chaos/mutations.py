"""Turns good JSON-RPC messages into bad ones, reproducibly: the same seed gives the same frames.

Some mutations keep valid JSON and break its meaning, others break the text or its bytes. Used by `fuzz.py`; independent of
transports.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**63, -(2**70), 1e308, "", "x" * 5000, "\x00", "😀", [], {}, [[]], {"": {}},
    "2026-07-28", "2025-11-25", "1999-01-01", "tools/call", "initialize", "echo", {"progressToken": {}}, ["echo"],
)  # fmt: skip
TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"\\ud800", b'"\\udfff"', b"\xff\xfe", b"\x00", b"1" * 400, b"1e999", b"{", b"}",
    b"[", b"]", b",", b":", b'"', b"\\", b"\\u12", b"//", b"\xe2\x80\xa8", b"null", b"[" * 100, b'{"a":' * 80, b"\r", b"\n ",
)  # fmt: skip
KEYS = ("id", "method", "params", "jsonrpc", "result", "error", "_meta", "name", "arguments", "cursor", "uri", "taskId")


class Mutator:
    """A stream of bad frames made from a corpus of good messages."""

    def __init__(self, corpus: list[dict[str, Any]], seed: int) -> None:
        self.corpus, self.random = corpus, random.Random(seed)
        self.count = 0

    def message(self) -> dict[str, Any]:
        """A good message with a fresh id."""
        self.count += 1
        good: dict[str, Any] = json.loads(json.dumps(self.random.choice(self.corpus)))
        if "id" in good:
            good["id"] = self.count
        return good

    def frame(self) -> bytes:
        """One bad frame, on a single line unless a mutation put a line break into it."""
        good = self.message()
        for _ in range(self.random.choice((0, 1, 1, 2, 4))):
            self.bend(good)
        body = json.dumps(good).encode()
        kind = self.random.random()
        if kind < 0.4:
            return body
        if kind < 0.5:
            return b"[" + b",".join([body] * self.random.choice((0, 1, 3, 40))) + b"]"
        if kind < 0.55:
            return self.doubled_key(body)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            body = self.break_text(body)
        return body

    def bend(self, message: Any) -> None:
        """Change, remove or add one value somewhere inside; the text stays JSON."""
        places = list(walk(message))
        container, key = self.random.choice(places) if places else (message, "id")
        chance = self.random.random()
        if chance < 0.6:
            container[key] = self.value()
        elif chance < 0.8 and isinstance(container, dict):
            container.pop(key, None)
        elif isinstance(container, dict):
            container[self.random.choice(KEYS)] = self.value()

    def value(self) -> Any:
        """An odd value of its own: one that was put in twice would be bent in both places."""
        return copy.deepcopy(self.random.choice(VALUES))

    def doubled_key(self, body: bytes) -> bytes:
        key = self.random.choice(KEYS)
        return body[:-1] + b',"' + key.encode() + b'":1,"' + key.encode() + b'":2}' if body.endswith(b"}") else body

    def break_text(self, body: bytes) -> bytes:
        here = self.random.randrange(len(body) + 1)
        there = min(len(body), here + self.random.choice((1, 2, 8, 64)))
        match self.random.randrange(5):
            case 0:
                return body[:here] + self.random.choice(TOKENS) + body[here:]
            case 1:
                return body[:here] + body[there:]
            case 2:
                return body[:here]
            case 3:
                return body[:there] + body[here:]
            case _:
                return body[:here] + bytes([self.random.randrange(256)]) + body[here + 1 :]


def walk(value: Any) -> Any:
    """Every place inside a message: its container and key."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from walk(inner)
