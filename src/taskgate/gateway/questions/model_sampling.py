"""Answer a server's sampling request with a model, where the operator allows it and the client cannot answer.

Only servers that the configuration names are answered, only while a request or task of a caller is open, and only within the
spending limits of the server and of the caller's tenant. With human review a person sees the request before it is sent to the
model, and the answer before the server receives it. `includeContext` is ignored: a model sees nothing but the request.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed, TaskgateError
from taskgate.core.generations.error_codes import error_object
from taskgate.core.generations.generation import Generation
from taskgate.core.identity.caller import OPERATOR
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.identity.identity import tenant_of
from taskgate.core.questions.question import ELICIT, SAMPLE, Answer, Question, accepted
from taskgate.core.sampling.answer import SamplingAnswer, as_result, price
from taskgate.core.sampling.choose_model import choose_model
from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.read_request import read_preferences, read_request
from taskgate.core.sampling.request import Audio, Image, SamplingRequest, Text, ToolResult, ToolUse
from taskgate.core.sampling.spending import Estimate, SpendLedger, limits_of_tenant
from taskgate.core.settings.providers import Model, SpendLimits
from taskgate.core.text.plain_text import visible
from taskgate.gateway.features import ModelSource
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.questions.inbox import Inbox
from taskgate.gateway.requests.budgets import Budgets

MAX_OPEN: Final = 32
MAX_SHOWN: Final = 100_000
NEARLY_SPENT: Final = 0.8
"""The part of a spending limit from which it needs attention."""
Review = Callable[[str, str], Awaitable[bool]]
Spent = Callable[[str, str, str, float], None]
"""Called with the cost of a model call: principal, server, model, amount."""


class SamplingRefused(TaskgateError):
    """A reviewer refused the request or the answer."""

    def __init__(self) -> None:
        super().__init__("sampling_refused", "A person refused this sampling request.", gate="sampling")


class Models:
    def __init__(
        self,
        plan: Live[Plan],
        budgets: Budgets,
        review: Review,
        record: Callable[[AuditEntry], None],
        spent: Spent,
    ) -> None:
        self._spent = spent
        self._plan = plan
        self._budgets = budgets
        self._review = review
        self._record = record
        self._ledgers: dict[str, SpendLedger] = {}
        self._of_tenants = SpendLedger(SpendLimits(), "This tenant's")
        self._open = 0

    def answer_for(self, question: Question) -> bool:
        """Return whether a model may answer the request."""
        features = self._plan.value.features
        return question.method == SAMPLE and bool(features.models) and question.server in features.model_servers

    async def answer(self, question: Question, principal: str) -> Answer:
        outcome, model, executed = "error", "", Executed.NO
        try:
            result, model = await self._ask(question, principal)
            outcome, executed = "ok", Executed.YES
            return Answer(result=wire.encode(result))
        except (SamplingError, SamplingRefused) as problem:
            executed = problem.executed
            outcome = problem.error_type
            return Answer(error=self._error_reply(problem))
        finally:
            self._record(
                AuditEntry(
                    0,
                    "sampling_by_model",
                    principal,
                    server=question.server,
                    name=model,
                    kind="sampling",
                    outcome=outcome,
                    executed=executed.value,
                )
            )

    def invalid_preferences(self, question: Question) -> Answer | None:
        """Return the error for a sampling request with invalid preferences, or None."""
        if question.method != SAMPLE:
            return None
        try:
            read_preferences(question.decoded().get("modelPreferences"))
        except SamplingError as problem:
            return Answer(error=self._error_reply(problem))
        return None

    def _error_reply(self, problem: TaskgateError) -> bytes:
        if problem.retry_after_s is not None:
            problem.data.setdefault("retry_after_s", round(problem.retry_after_s, 1))
        legacy = self._plan.value.features.legacy_numbers
        return error_object(problem, Generation.STATEFUL, secrets.token_hex(8), problem.executed, legacy_numbers=legacy)

    async def _ask(self, question: Question, principal: str) -> tuple[dict[str, Any], str]:
        request = read_request(question.decoded())
        offered = [
            (source, model)
            for source in self._plan.value.features.models
            for model in source.provider.available_models()
        ]
        model = choose_model([model for _, model in offered], request)
        source = next(source for source, each in offered if each is model)
        if self._open >= MAX_OPEN:
            raise SamplingError(SamplingProblem.RATE_LIMITED, "Too many sampling requests are open. Try again later.")
        self._open += 1
        try:
            answer = await self._spend(question.server, principal, source, model, request=request)
        finally:
            self._open -= 1
        return as_result(answer, model), model.name

    async def _spend(
        self, server: str, principal: str, source: ModelSource, model: Model, *, request: SamplingRequest
    ) -> SamplingAnswer:
        settle = self._reserve(server, tenant_of(principal), source, source.provider.estimate_cost(request, model))
        try:
            if source.human_review and not await self._reviewed(server, _question_text(server, model, request)):
                raise SamplingRefused
            answer = await source.provider.create_message(request, model)
        except BaseException as problem:
            if isinstance(problem, TaskgateError) and problem.executed is Executed.NO:
                settle(0, 0.0)
            raise
        tokens_in, tokens_out = answer.tokens_in, answer.tokens_out
        cost = price(model, tokens_in, tokens_out)
        settle(tokens_in + tokens_out, cost)
        self._spent(principal, server, model.name, cost)
        if source.human_review and not await self._reviewed(server, _answer_text(server, model, answer)):
            raise SamplingRefused
        return answer

    async def _reviewed(self, server: str, text: str | None) -> bool:
        """Ask for review. Text that cannot be shown in full is refused, because a reviewer must see all of it."""
        return text is not None and len(text) <= MAX_SHOWN and await self._review(server, text)

    def _reserve(
        self, server: str, tenant: str, source: ModelSource, estimate: Estimate
    ) -> Callable[[int, float], None]:
        """Reserve spending for the server and for the caller's tenant; return the function that settles both. Raises
        SamplingError, and then nothing is reserved."""
        ledger, now = self._ledger(source), clock.monotonic()
        entry = ledger.reserve(server, estimate, now)
        if not tenant:
            return partial(ledger.settle, entry)
        self._of_tenants.adopt(limits_of_tenant(self._plan.value.limits).part(self._budgets.gateways))
        try:
            other = self._of_tenants.reserve(tenant, estimate, now)
        except SamplingError:
            ledger.withdraw(server, entry)
            raise

        def settle(tokens: int, money: float) -> None:
            ledger.settle(entry, tokens, money)
            self._of_tenants.settle(other, tokens, money)

        return settle

    def _ledger(self, source: ModelSource) -> SpendLedger:
        """Return the account, which survives a reload, with the current limits and this gateway's share of them."""
        limits = source.limits.part(self._budgets.gateways)
        ledger = self._ledgers.setdefault(source.provider.name, SpendLedger(limits))
        ledger.adopt(limits)
        return ledger

    def nearly_spent(self) -> list[tuple[str, str, float]]:
        """Return `server` or `tenant`, its name, and the part of its hourly limit that is spent, where that is nearly all of it."""
        now = clock.monotonic()
        found = [
            *(("server", *each) for ledger in self._ledgers.values() for each in ledger.shares(now).items()),
            *(("tenant", *each) for each in self._of_tenants.shares(now).items()),
        ]
        return sorted((each for each in found if each[2] >= NEARLY_SPENT), key=lambda each: -each[2])

    async def close(self) -> None:
        close = self._plan.value.features.close_models
        if close is not None:
            await close()


def _question_text(server: str, model: Model, request: SamplingRequest) -> str | None:
    """Return everything that the model will see; None if a part cannot be shown as text."""
    if request.needs(Image) or request.needs(Audio):
        return None
    text = [f"{message.role}: {_shown(message.content)}" for message in request.messages]
    if request.system:
        text.insert(0, f"system: {request.system}")
    for tool in request.tools:
        schema = json.dumps(dict(tool.input_schema), ensure_ascii=False)
        text.append(f"tool {tool.name}: {tool.description}\n{schema}")
    if request.stop_sequences:
        text.append(f"stops at: {json.dumps(request.stop_sequences, ensure_ascii=False)}")
    how = f"at most {request.max_tokens} tokens, tool choice {request.tool_choice}"
    if request.temperature is not None:
        how += f", temperature {request.temperature}"
    return visible(f"{server} requests the model {model.name} ({how}):\n" + "\n".join(text))


def _answer_text(server: str, model: Model, answer: SamplingAnswer) -> str:
    return visible(f"The model {model.name} answers {server}:\n{_shown(answer.content)}")


def _shown(blocks: Sequence[Any]) -> str:
    return " ".join(_block(block) for block in blocks)


def _block(block: Any) -> str:
    match block:
        case Text():
            return block.text
        case ToolUse():
            return f"[asks for {block.name} {json.dumps(dict(block.input), ensure_ascii=False)}]"
        case ToolResult():
            return f"[{'failed' if block.is_error else 'result'}: {_shown(block.content)}]"
        case _:
            return f"[{type(block).__name__.lower()}]"


def shown_to_operator(inbox: Inbox) -> Review:
    """Return a review by the operator, in the inbox. Only an explicit approval continues the request."""

    async def review(server: str, text: str) -> bool:
        schema = {"type": "object", "properties": {}}
        params = wire.raw({"message": text, "requestedSchema": schema})
        return accepted(await inbox.ask(ConversationKey(OPERATOR), Question(ELICIT, params, server)))

    return review
