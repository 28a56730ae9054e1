"""Cancel a call of a script."""

from __future__ import annotations

from taskgate.core.errors import CallerError
from taskgate.gateway.scripts.script_parts import ScriptParts
from taskgate.telemetry.logs import log


async def cancel_call(parts: ScriptParts, task_id: str, why: str) -> None:
    """Cancel a call of a script, unless it has ended."""
    task = await parts.tasks.records.current(task_id)
    if task is None or task.state.is_terminal:
        return
    try:
        await parts.tasks.methods.cancel_task(task, why)
    except CallerError as problem:
        log.info("a call of a script had ended before it was cancelled", task=task_id, why=problem.message)
