"""Redact secrets that were sent to a server from the errors, failed results, notifications and log lines that it returns.

Each wire has a filter with the secrets that it sends. Ordinary results are passed on unchanged and are not searched:
what a tool returns on purpose is not modified (docs/identity.md).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from taskgate.core import wire
from taskgate.core.redaction.sent_secrets import SentSecrets, header_secrets
from taskgate.core.strict_scan import StrictScan
from taskgate.core.wire import DEEPEST, Members, Message, Raw
from taskgate.ports.upstream_credentials import HeaderPairs
from taskgate.turns import LARGE_BYTES, let_others_run

MAX_OWN: Final = 4
"""How many recent tokens of a wire are redacted, because a server may echo an earlier one."""
MAX_OF_OTHERS: Final = 16
"""The same for all wires to a server, which carry tokens of different principals."""
_STEP_BYTES: Final = 1 << 20
_MAX_NODES: Final = 2**62
_FAILED: Final = re.compile(rb'"isError"[ \t\r\n]*:[ \t\r\n]*true')
_MARK: Final = b'"isError"'
_STATUS_OF_TASKS: Final = frozenset({"tasks/get", "tasks/cancel", "tasks/update"})


class ServerSecrets:
    """Secrets sent to one server on all its wires: those of the configuration, and recent tokens."""

    __slots__ = ("configured", "recent")

    def __init__(self, configured: Iterable[str]) -> None:
        self.configured = SentSecrets(configured, within_base64=True)
        self.recent: OrderedDict[HeaderPairs, SentSecrets] = OrderedDict()


class SecretFilter:
    __slots__ = ("_own", "_server", "active")

    def __init__(self, server: ServerSecrets) -> None:
        self._server = server
        self._own: OrderedDict[HeaderPairs, SentSecrets] = OrderedDict()
        self.active = bool(server.configured)
        """Whether there are secrets to redact. Most servers need no credentials."""

    def note(self, proof: HeaderPairs) -> None:
        """Register headers that are sent from now on. Earlier ones may still be echoed."""
        if proof and proof not in self._own:
            secrets = [
                s for name, value in proof for s in header_secrets(name.decode("latin-1"), value.decode("latin-1"))
            ]
            _keep(self._own, proof, SentSecrets(secrets, within_base64=True), MAX_OWN)
            _keep(self._server.recent, proof, SentSecrets(secrets), MAX_OF_OTHERS)
            self.active = True

    def text(self, text: str) -> str:
        for secrets in self._every():
            text = secrets.in_text(text)
        return text

    def error(self, raw: bytes) -> bytes:
        """Return a JSON-RPC error, or another small document, without the secrets."""
        for secrets in self._every():
            raw = secrets.in_json(raw)
        return raw

    def notification(self, message: Message) -> Message:
        raw = message.raw_params
        if raw is None:
            return message
        before = bytes(raw)
        after = self.error(before)
        return message if after is before else _with_params(message, after)

    async def large_notification(self, message: Message) -> Message:
        raw = message.raw_params
        if raw is None:
            return message
        before = bytes(raw)
        after = await self._large(before)
        return message if after is before else _with_params(message, after)

    def concerns(self, method: str, message: Message) -> bool:
        """Return whether a response must be searched: an error, a failed result, a task status, or a result too large to check
        here.
        """
        raw = message.raw_result
        if raw is None or method in _STATUS_OF_TASKS:
            return True
        if memoryview(raw).nbytes >= LARGE_BYTES:
            return True
        if type(message.result) is dict:
            return message.result.get("isError") is True
        body = bytes(raw)
        at = body.find(_MARK)
        return at >= 0 and _FAILED.search(body, at) is not None

    async def answer(self, method: str, message: Message) -> Message:
        """Return the response without the secrets if it reports a failure."""
        if message.raw_error is not None:
            return msgspec.structs.replace(message, raw_error=Raw(await self._large(bytes(message.raw_error))))
        if message.raw_result is None:
            return message
        before = bytes(message.raw_result)
        if method in _STATUS_OF_TASKS:
            after = await self._task_status(before)
        else:
            after = await self._large(before) if await _is_failed(before) else before
        return message if after is before else msgspec.structs.replace(message, result=None, raw_result=Raw(after))

    async def _task_status(self, raw: bytes) -> bytes:
        """Redact the status of a server's own task. A result in it stays unchanged unless it reports a failure."""
        members = await _members(raw)
        cleaned: Members = {}
        for name, value in members.items():
            before = bytes(value)
            ordinary = name == "result" and not await _is_failed(before)
            after = before if ordinary else await self._large(before)
            if after is not before:
                cleaned[name] = Raw(after)
        return wire.join({**members, **cleaned}) if cleaned else raw

    async def _large(self, raw: bytes) -> bytes:
        for secrets in self._every():
            steps = secrets.steps_in_json(raw)
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    raw = done.value
                    break
                await let_others_run()
        return raw

    def _every(self) -> Iterator[SentSecrets]:
        yield self._server.configured
        yield from tuple(self._own.values())
        yield from tuple(secrets for proof, secrets in self._server.recent.items() if proof not in self._own)


def _keep(table: OrderedDict[HeaderPairs, SentSecrets], proof: HeaderPairs, secrets: SentSecrets, maximum: int) -> None:
    table[proof] = secrets
    table.move_to_end(proof)
    if len(table) > maximum:
        table.popitem(last=False)


def _with_params(message: Message, params: bytes) -> Message:
    return msgspec.structs.replace(message, params=wire.parse_strictly(params), raw_params=Raw(params))


async def _is_failed(result: bytes) -> bool:
    """Return whether a tool's result has `isError`."""
    for begin in range(0, len(result), _STEP_BYTES):
        if begin:
            await let_others_run()
        end = begin + _STEP_BYTES
        at = result.find(_MARK, begin, end + len(_MARK) - 1)
        while at >= 0:
            if _FAILED.match(result, at) is not None:
                return bytes((await _members(result)).get("isError", Raw(b"false"))) == b"true"
            at = result.find(_MARK, at + len(_MARK), end + len(_MARK) - 1)
    return False


async def _members(document: bytes) -> Members:
    if document[:1] != b"{":
        return {}
    if len(document) < LARGE_BYTES:
        return wire.members_of(document)
    scan = StrictScan(document, DEEPEST, _MAX_NODES)
    while not scan.step():
        await let_others_run()
    return scan.members()
