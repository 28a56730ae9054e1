"""Keys of `_meta` that Taskgate defines for calls and their replies."""

from __future__ import annotations

from typing import Final

APPROVAL: Final = "taskgate/approval"
"""Key of `_meta` in the handle of a held call: the id of the approval, and the page where an approver decides."""
JOINED: Final = "taskgate/joined"
"""Key of `_meta` in the reply of a call that joined an equal one: the task of that call."""
KEY_META: Final = "taskgate/idempotencyKey"
"""Key of `_meta` for an idempotency key from the caller."""
TASK_META: Final = "taskgate/task"
"""A stateless caller sets this key in `_meta` to true to get a task handle at once."""
