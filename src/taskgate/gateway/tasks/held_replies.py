"""Which open replies wait for one held call. A cancellation ends the call only if no other caller waits for its result.

Several requests wait for one task if equal calls joined or were repeated under an idempotency key.
"""

from __future__ import annotations


class HeldReplies:
    """One entry for each task that an open reply waits for. The entry is removed with the last reply."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._promised: set[str] = set()
        """Tasks whose id is known to a caller that does not wait: it may request the result later."""

    def opened(self, task_id: str, *, promised: bool, joins: bool) -> None:
        """Count an open reply. `promised`: its caller can find the task again. `joins`: its call joined an equal one."""
        waiting = self._waiting.get(task_id, 0)
        self._waiting[task_id] = waiting + 1
        # If no reply waits for the call that is joined, its caller has the task's id.
        if promised or (joins and not waiting):
            self.promise(task_id)

    def promise(self, task_id: str) -> None:
        """A caller gets the task's id."""
        if task_id in self._waiting:
            self._promised.add(task_id)

    def answered(self, task_id: str) -> None:
        """A caller got its reply: the result, or the task's id."""
        self.promise(task_id)
        self._closed(task_id)

    def cancelled(self, task_id: str) -> bool:
        """A caller cancelled. Return whether no other caller waits for the result."""
        is_promised = task_id in self._promised
        return self._closed(task_id) and not is_promised

    def _closed(self, task_id: str) -> bool:
        """Remove a reply. Return whether it was the last one."""
        self._waiting[task_id] -= 1
        if self._waiting[task_id]:
            return False
        del self._waiting[task_id]
        self._promised.discard(task_id)
        return True
