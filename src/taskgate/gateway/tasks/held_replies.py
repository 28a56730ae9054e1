"""Which open replies wait for one held call. A cancellation ends the call only if no other caller waits for its result.

Several requests wait for one task if equal calls joined or were repeated under an idempotency key.
"""

from __future__ import annotations


class HeldReplies:
    """One entry for each task that an open reply waits for. The entry is removed with the last reply."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._id_known: set[str] = set()
        """Tasks whose id is known to a caller that does not wait: it may request the result later."""

    def opened(self, task_id: str, *, id_known: bool, joins: bool) -> None:
        """Count an open reply. `id_known`: its caller can find the task again. `joins`: its call joined an equal one."""
        waiting = self._waiting.get(task_id, 0)
        self._waiting[task_id] = waiting + 1
        # If no reply waits for the call that is joined, its caller has the task's id.
        if id_known or (joins and not waiting):
            self.mark_id_known(task_id)

    def mark_id_known(self, task_id: str) -> None:
        """A caller gets the task's id."""
        if task_id in self._waiting:
            self._id_known.add(task_id)

    def answered(self, task_id: str) -> None:
        """A caller got its reply: the result, or the task's id."""
        self.mark_id_known(task_id)
        self._closed(task_id)

    def cancelled(self, task_id: str) -> bool:
        """A caller cancelled. Return whether no other caller waits for the result."""
        id_known = task_id in self._id_known
        return self._closed(task_id) and not id_known

    def _closed(self, task_id: str) -> bool:
        """Remove a reply. Return whether it was the last one."""
        self._waiting[task_id] -= 1
        if self._waiting[task_id]:
            return False
        del self._waiting[task_id]
        self._id_known.discard(task_id)
        return True
