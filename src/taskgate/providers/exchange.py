"""What an account with any vendor is: its models, what they cost, and where and with which key they are asked.

One HTTP exchange with a vendor: bounded in time and size, and every failure in our own words.

A vendor's message may quote prompts or keys, so it is never passed on; only the status and the kind of error count. No
retries: whether to try again is for whoever asked. A connection that broke after the request had left may have cost
money, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from taskgate.core.errors import Executed
from taskgate.core.sampling.choose_model import Estimate, Model, estimate
from taskgate.core.sampling.read_request import SamplingError, SamplingProblem, SamplingRequest


@dataclass(frozen=True, slots=True)
class Account:
    """One account. The HTTP client is shared and belongs to whoever made it."""

    name: str
    models: tuple[Model, ...]
    client: httpx2.AsyncClient = field(repr=False)
    key: str = field(repr=False)
    base_url: str
    timeout_s: float = 60.0

    def available_models(self) -> tuple[Model, ...]:
        return self.models

    def estimate_cost(self, request: SamplingRequest, model: Model) -> Estimate:
        return estimate(request, model)

    async def close(self) -> None:
        """Nothing of its own is open."""


MAX_ANSWER_BYTES = 16 * 1024 * 1024
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


async def post_json(
    client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Send a JSON body and give back the JSON object of a good answer. Raises SamplingError."""
    try:
        async with asyncio.timeout(timeout_s):
            status, retry_after, raw = await _exchange(client, url, headers, msgspec.json.encode(body))
    except (TimeoutError, httpx2.TimeoutException) as problem:
        sent = Executed.NO if isinstance(problem, _NOT_SENT) else Executed.MAYBE
        raise SamplingError(SamplingProblem.TIMEOUT, "The model did not answer in time.", executed=sent) from problem
    except httpx2.HTTPError as problem:
        sent = Executed.NO if isinstance(problem, _NOT_SENT) else Executed.MAYBE
        raise SamplingError(
            SamplingProblem.FAILED, "The model's provider cannot be reached.", executed=sent
        ) from problem
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
            if len(received) > MAX_ANSWER_BYTES:
                raise SamplingError(SamplingProblem.FAILED, "The model's answer is too large.", executed=Executed.YES)
        return response.status_code, response.headers.get("retry-after"), bytes(received)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _failure(status: int, answer: Mapping[str, Any], retry_after: str | None) -> SamplingError:
    error = answer.get("error")
    kinds = {error.get("type"), error.get("code")} if isinstance(error, Mapping) else set()
    if status == 200:
        return unusable()
    if status in (401, 403):
        return SamplingError(SamplingProblem.FAILED, "The provider does not accept the gateway's key.")
    if status == 404 or kinds & {"model_not_found", "not_found_error"}:
        return SamplingError(SamplingProblem.MODEL_NOT_AVAILABLE, "The provider does not have the chosen model.")
    if status == 429 and "insufficient_quota" not in kinds:
        return SamplingError(
            SamplingProblem.RATE_LIMITED,
            "The provider is asked too often. Try again later.",
            retry_after_s=_seconds(retry_after),
        )
    if status == 429:
        return SamplingError(SamplingProblem.FAILED, "The gateway's account with the provider has no credit left.")
    if status == 408 or status == 504:
        return SamplingError(SamplingProblem.TIMEOUT, "The model did not answer in time.", executed=Executed.MAYBE)
    if status >= 500:
        return SamplingError(
            SamplingProblem.FAILED,
            "The provider is in trouble. Try again later.",
            retry_after_s=_seconds(retry_after),
            executed=Executed.MAYBE,
        )
    return SamplingError(SamplingProblem.FAILED, "The provider refused the request.")


def unusable() -> SamplingError:
    """The vendor answered, and nothing can be made of it."""
    return SamplingError(SamplingProblem.FAILED, "The provider's answer cannot be understood.", executed=Executed.YES)


def _seconds(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds <= 86_400 else None
