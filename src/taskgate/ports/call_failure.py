"""The failure of a request to a server: what is known about whether it was executed."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.evidence import Evidence, Moment, failure_verdict
from taskgate.core.text.plain_text import visible

_ADVICE: Final = {
    Executed.NO: "The call was not executed; it is safe to try again.",
    Executed.MAYBE: "The call may or may not have taken effect; check before trying again.",
    Executed.YES: "The call was executed.",
}


class CallFailed(UpstreamError):
    """A request without a reply, with the evidence of its transport. `executed` applies to the first round of a call."""

    keeps_its_kind: ClassVar[bool] = False
    """Whether a handler further up needs the exact subclass."""

    def __init__(
        self,
        error_type: str,
        server: str,
        why: str,
        evidence: Evidence,
        *,
        round_number: int = 1,
        advice: str = "",
        message: str = "",
        detail: str = "",
    ) -> None:
        executed = failure_verdict(evidence, round_number=round_number).executed
        super().__init__(
            error_type,
            message or f"The server {server} {why}. {_ADVICE[executed]}{advice}",
            executed=executed,
            retry_after_s=evidence.retry_after_s,
        )
        self.server = server
        self.why = why
        self.evidence = evidence
        self.detail = detail
        """Shown to operators only: it may contain addresses and file names."""

    def in_round(self, round_number: int) -> CallFailed:
        """Return the same failure for a later round: the call has been executed at least in part."""
        return CallFailed(
            self.error_type, self.server, self.why, self.evidence, round_number=round_number, detail=self.detail
        )

    def after_ping(self, refused: bool) -> CallFailed:
        """Return the same failure with the result of a ping on the same session."""
        evidence = msgspec.structs.replace(self.evidence, ping_refused=refused)
        return CallFailed(self.error_type, self.server, self.why, evidence, detail=self.detail)


MAX_DETAIL: Final = 300


def for_operators(problem: TaskgateError) -> str:
    """Return what is wrong with a server, with the details that callers do not get."""
    detail = problem.detail if isinstance(problem, CallFailed) else ""
    return f"{about_server(problem)} ({visible(detail[:MAX_DETAIL])})" if detail else about_server(problem)


def about_server(problem: TaskgateError) -> str:
    """Return what is wrong with a server, and nothing about a call: there may have been several, or none."""
    return f"The server {problem.server} {problem.why}." if isinstance(problem, CallFailed) else problem.message


def never_sent(server: str, problem: UpstreamError) -> CallFailed:
    """Return the failure of a call that could not be sent. The call was not executed, regardless of what the handshake returned."""
    if isinstance(problem, CallFailed) and problem.keeps_its_kind:
        return problem
    why, detail = "could not be connected to", ""
    if isinstance(problem, CallFailed):
        why, detail = problem.why, problem.detail
    message = problem.message if problem.executed is Executed.NO else ""
    return CallFailed("upstream_unreachable", server, why, Evidence(Moment.NOT_SENT), message=message, detail=detail)


class NotListed(UpstreamError):
    """A call of a tool whose server has not been listed yet. `reason`: why not, if it is known."""

    def __init__(self, server: str, tool: str, reason: TaskgateError | None) -> None:
        error_type, text = "upstream_unreachable", f"The server {server} was not listed yet. {_ADVICE[Executed.NO]}"
        if reason is not None and reason.executed is Executed.NO:
            error_type, text = reason.error_type, reason.message
        retry_after_s = reason.retry_after_s if reason is not None else None
        super().__init__(error_type, text, executed=Executed.NO, retry_after_s=retry_after_s)
        self.server = server
        self.tool = tool
        """Its name at the server; empty if only the arguments of the request name it."""
