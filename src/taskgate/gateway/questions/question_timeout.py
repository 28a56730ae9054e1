"""How long a question waits for its answer."""

from __future__ import annotations

from taskgate.core.questions.question import Question
from taskgate.gateway.plan import Plan


def question_timeout_s(plan: Plan, question: Question) -> float:
    """Return the timeout. A URL expires sooner than a form; a script may wait longer than a server."""
    if question.of_script:
        return plan.limits.script_question_timeout
    whole = plan.limits.question_timeout
    return min(whole, plan.limits.url_elicitation_expiry) if question.is_url and not question.own else whole
