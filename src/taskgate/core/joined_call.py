"""A call that joined an equal call of the same conversation, and its description for the caller."""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core.meta_keys import KEY_META


class JoinedCall(msgspec.Struct, frozen=True):
    """A call that joined an equal call, which waits for an approval."""

    task_id: str
    key: str
    """An idempotency key that makes the same call a second one."""

    def shown(self) -> dict[str, Any]:
        return {"taskId": self.task_id, "secondWith": {KEY_META: self.key}}

    def sentence(self) -> str:
        return (
            f"An equal call of this conversation already waits for approval as task {self.task_id}, and this call joined it. To "
            f'make a second call, repeat it with _meta {{"{KEY_META}": "{self.key}"}}.'
        )
