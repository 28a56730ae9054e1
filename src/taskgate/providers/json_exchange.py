"""One HTTP exchange with a provider: limited in time and size, with fixed error messages.

A provider's error message may quote prompts or keys, so it is never passed on; only the status and the kind of error are used.
There are no retries: that is the caller's decision. If the connection breaks after the request was sent, the request may have cost
money, and the error states that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import msgspec

from taskgate.core.errors import Executed
from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.mcp.json_errors import UNDECODABLE

MAX_REPLY_BYTES = 16 * 1024 * 1024
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


async def post_json(
    client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Send a JSON body and return the JSON object of a successful reply. Raises SamplingError."""
    try:
        async with asyncio.timeout(timeout_s):
            status, retry_after, raw = await _exchange(client, url, headers, msgspec.json.encode(body))
    except (TimeoutError, httpx2.TimeoutException) as problem:
        sent = Executed.NO if isinstance(problem, _NOT_SENT) else Executed.MAYBE
        raise SamplingError(SamplingProblem.TIMEOUT, "The model did not answer in time.", executed=sent) from problem
    except httpx2.HTTPError as problem:
        sent = Executed.NO if isinstance(problem, _NOT_SENT) else Executed.MAYBE
        raise SamplingError(SamplingProblem.FAILED, "The model's provider is unreachable.", executed=sent) from problem
    answer = _object(raw)
    if status == 200 and answer is not None:
        return answer
    raise _failure(status, answer or {}, retry_after)


async def _exchange(
    client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: bytes
) -> tuple[int, str | None, bytes]:
    sent = {"content-type": "application/json", "accept": "application/json", **headers}
    async with client.stream("POST", url, headers=sent, content=body) as response:
        received = bytearray()
        async for chunk in response.aiter_bytes():
            received += chunk
            if len(received) > MAX_REPLY_BYTES:
                raise SamplingError(SamplingProblem.FAILED, "The model's reply is too large.", executed=Executed.YES)
        return response.status_code, response.headers.get("retry-after"), bytes(received)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except UNDECODABLE:
        return None


def _failure(status: int, answer: Mapping[str, Any], retry_after: str | None) -> SamplingError:
    error = answer.get("error")
    kinds = {error.get("type"), error.get("code")} if isinstance(error, Mapping) else set()
    if status == 200:
        return invalid_reply()
    if status in (401, 403):
        return SamplingError(SamplingProblem.FAILED, "The provider does not accept the gateway's key.")
    if status == 404 or kinds & {"model_not_found", "not_found_error"}:
        return SamplingError(SamplingProblem.MODEL_NOT_AVAILABLE, "The provider does not have the chosen model.")
    if status == 429 and "insufficient_quota" not in kinds:
        return SamplingError(
            SamplingProblem.RATE_LIMITED,
            "The provider's rate limit is reached. Try again later.",
            retry_after_s=_seconds(retry_after),
        )
    if status == 429:
        return SamplingError(SamplingProblem.FAILED, "The gateway's account with the provider has no credit left.")
    if status == 408 or status == 504:
        return SamplingError(SamplingProblem.TIMEOUT, "The model did not answer in time.", executed=Executed.MAYBE)
    if status >= 500:
        return SamplingError(
            SamplingProblem.FAILED,
            "The provider has an internal error. Try again later.",
            retry_after_s=_seconds(retry_after),
            executed=Executed.MAYBE,
        )
    return SamplingError(SamplingProblem.FAILED, "The provider refused the request.")


def invalid_reply() -> SamplingError:
    """Return the error for a reply that cannot be decoded."""
    return SamplingError(SamplingProblem.FAILED, "The provider's reply is invalid.", executed=Executed.YES)


def _seconds(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds <= 86_400 else None
