"""Replies that refer a caller to a task instead of giving it the result: a task handle, or a text for clients without tasks."""

from __future__ import annotations

from typing import Any

from taskgate.core import wire
from taskgate.core.catalog.output_schema import task_notice
from taskgate.core.delivery import Delivery, ReplyForm
from taskgate.core.delivery_texts import held_text, promoted_text
from taskgate.core.generations.generation import IMMEDIATE_RESPONSE, Generation
from taskgate.core.generations.stateless import mark_complete
from taskgate.core.meta_keys import APPROVAL, JOINED
from taskgate.core.tasks.projections_stateful import stateful_create_result
from taskgate.core.tasks.projections_stateless import stateless_create_result
from taskgate.core.tasks.task import RunOn, Task
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.task_records import TaskRecords


def promotion_reply(
    request: Request,
    task: Task,
    records: TaskRecords,
    delivery_mode: Delivery,
    waited_s: float,
    *,
    page: str | None = None,
) -> bytes:
    """The reply to a caller whose call became a task: a handle if it supports tasks, else text. `page`: where approvers decide."""
    if request.delivery.hand_over is not None:
        return request.delivery.hand_over(task, waited_s)
    if delivery_mode.form is ReplyForm.HANDLE:
        return wire.encode(task_handle(request, task, records, page))
    by_itself, helpers = task.run_on is RunOn.ONCE_ALLOWED, records.has_helpers(request)
    text = promoted_text(task.wire_name, task.id, round(waited_s, 1), helpers, page=page, by_itself=by_itself)
    if request.delivery.joined is not None:
        text = f"{text} {request.delivery.joined.sentence()}"
    question = request.delivery.waiting_text()
    if question is not None:
        text = f"{text} {question}"
    # Clients validate structured content against the listed schema, which permits this notice.
    notice = task_notice(task.id, "working", text)
    result = wire.encode({"content": [{"type": "text", "text": text}], "structuredContent": notice, "isError": False})
    return mark_complete(result) if request.generation is Generation.STATELESS else result


def task_handle(request: Request, task: Task, records: TaskRecords, page: str | None) -> dict[str, Any]:
    """The handle of a task. `page`: where approvers decide, if they must."""
    if request.generation is Generation.STATELESS:
        handle = stateless_create_result(task, records.poll_ms(task))
    else:
        handle = stateful_create_result(task, records.poll_ms(task))
    meta, texts = {}, []
    if page is not None:
        meta[APPROVAL] = {"id": task.approval_id, "url": page}
        texts.append(held_text(task.wire_name, task.id, page, by_itself=task.run_on is RunOn.ONCE_ALLOWED))
    if request.delivery.joined is not None:
        meta[JOINED] = request.delivery.joined.shown()
        texts.append(request.delivery.joined.sentence())
    if texts:
        handle["_meta"] = {**handle.get("_meta", {}), **meta, IMMEDIATE_RESPONSE: " ".join(texts)}
    return handle
