"""Dispatch a request to its use case, and turn every outcome into a reply.

Each protocol generation has its own table of methods. A method that is not in the table does not exist in that generation, even
if an upstream server supports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.scoping.scope import FACADE_MODES
from taskgate.core.text.confusables import CHECKED_MEMBERS, lookalike_member
from taskgate.core.waterfall import Waterfall
from taskgate.core.wire import Message
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.method_tables import unknown_method
from taskgate.gateway.methods.vendor_methods import VendorMethods
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.relay.traced_calls import answer_traced
from taskgate.gateway.requests.admission import Admission
from taskgate.gateway.requests.budgets import CHARGED, Budgets
from taskgate.gateway.requests.replies import (
    CallerReply,
    error_reply,
    internal_error_reply,
    relayed_error,
    shutting_down,
)
from taskgate.gateway.requests.request import Request
from taskgate.gateway.shared_caches import SharedCaches
from taskgate.gateway.status import GatewayStatus
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.upstream_replies import RelayedError
from taskgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

UseCase = Callable[[Request], Awaitable[bytes]]
Answer = Callable[[Request], Coroutine[Any, Any, CallerReply | None]]

PASSED_ON: Final = CHARGED | {"resources/subscribe", "resources/unsubscribe"}
"""Methods whose parameters are forwarded to an upstream server."""

UNAMBIGUOUS: Final = CHECKED_MEMBERS - {"ref"}
"""Parameters that need no comparison with the checked ones. `ref` is excluded because its members must be compared too."""


class RequestDispatcher(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    status: GatewayStatus
    tasks: TaskEngine
    metrics: Metrics
    budgets: Budgets
    admission: Admission
    caches: SharedCaches | None
    """None when no other gateway shares the store."""
    denials: Denials
    vendor: VendorMethods
    waterfall: Waterfall
    tracing: Tracing | None
    stateful: Mapping[str, UseCase]
    stateless: Mapping[str, UseCase]

    def answer(self, request: Request) -> Coroutine[Any, Any, CallerReply | None]:
        """Return the reply to a request; None if it was answered early because the call continues as a task. Never raises, except
        CancelledError.
        """
        return self._answer(request) if self.tracing is None else answer_traced(self.tracing, self._answer, request)

    async def _answer(self, request: Request) -> CallerReply | None:
        message, session, delivery = request.message, request.session, request.delivery
        method, message_id = message.method, message.id
        assert message_id is not None
        use_case = (self.stateful if session is not None else self.stateless).get(method)
        span = delivery.begin(method, request.params, request.caller.principal, self.waterfall)
        state = "error"
        try:
            if session is not None and self.plan.value.features.vendor_methods:
                use_case = self.vendor.methods.get(method, use_case)
            if use_case is None:
                raise unknown_method(method)
            self._admit(request, message_id)
            try:
                result = await use_case(request)
            finally:
                if session is not None and not delivery.answered:
                    session.end(message_id)
            state = "ok"
            return CallerReply(wire.success(message_id, result)) if not delivery.answered else None
        except RelayedError as error:
            return relayed_error(request, error)
        except TaskgateError as problem:
            state = problem.error_type
            self.denials.request_refused(request, problem)
            return error_reply(self.plan.value, problem, message_id, request.generation, message, facts=_facts(request))
        except Exception as fault:  # a fault fails this request only; the reply refers to the log entry
            return internal_error_reply(fault, message, request.generation)
        except asyncio.CancelledError:
            state = "cancelled"
            if self.tasks.draining and not delivery.sent and method in CHARGED and not delivery.answered:
                # The request was still queued, or waiting for a connection, when the drain timeout expired.
                return self.failure(shutting_down(message), message_id, request.generation, message)
            raise
        finally:
            now = clock.monotonic()
            if delivery.answered:
                state = "promoted"
            else:
                delivery.end_call()
                span.over(state, now)
            # Callers choose the method name: an unknown one must not become a metric label.
            self.metrics.answered(method if use_case else "other", state, now - span.began)

    def _admit(self, request: Request, message_id: bytes) -> None:
        """Check the limits and register the request, so that it can be cancelled. Raises TaskgateError if it is not admitted."""
        if self.status.stopping:
            raise shutting_down(request.message)
        params, method, session = request.message.params, request.message.method, request.session
        if params is not None and method in PASSED_ON and not UNAMBIGUOUS.issuperset(params):
            _refuse_lookalikes(params)
        if method in CHARGED:
            if self.budgets.limit_callers:
                self.budgets.admit(request)
            self.admission.enter(request)
            if self.caches is not None:
                self.caches.check()
        if session is not None:
            session.begin(message_id, request.delivery.carrier or request.delivery.carrier_task())
            return
        if self._keeps_questions(request.caller.scope, method):
            request.delivery.use_inbox()

    def _keeps_questions(self, scope_name: str, method: str) -> bool:
        """Whether questions of servers to a stateless client that cannot answer them wait in its inbox.

        A stateless request declares the client's capabilities itself, and servers rely on them (-32021). A call of a tool can
        become a task while a question waits; for other requests only the facade modes add the inbox.
        """
        scope = self.plan.value.scopes.get(scope_name)
        return scope is not None and (scope.mode in FACADE_MODES or (method == "tools/call" and scope.has_helpers))

    def failure(
        self,
        problem: TaskgateError,
        message_id: bytes | None,
        generation: Generation,
        message: Message | None = None,
    ) -> CallerReply:
        """Return the error reply. `message` is the request, if it could be parsed; the error then makes no statement about an
        earlier call that the request refers to."""
        return error_reply(self.plan.value, problem, message_id, generation, message)


def _refuse_lookalikes(params: Mapping[str, Any]) -> None:
    """Refuse a parameter whose name looks like that of a checked one: a lenient server could read it instead."""
    similar = lookalike_member(params)
    if similar is not None:
        raise CallerError(
            "invalid_params",
            f"The member {similar[0][:80]!r} imitates {similar[1]!r}. The request was not executed.",
        )


def _facts(request: Request) -> dict[str, object]:
    """The caller and the target of a request, for the log."""
    target = request.params.get("name") or request.params.get("uri") or request.params.get("taskId")
    facts = {
        "method": request.message.method[:80],
        "principal": request.caller.principal,
        "scope": request.caller.scope,
    }
    return {**facts, "name": target[:200]} if type(target) is str else dict(facts)
