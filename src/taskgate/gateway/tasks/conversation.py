"""The link and the client profile that a task uses for its server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core.generations.generation import Generation
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import ConversationIdle, EventHub
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import LinkKey

RESUMED: Final = "resume-"
ALL_CAPABILITIES: Final = ClientProfile(
    {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
)


class Conversation(msgspec.Struct, frozen=True):
    key: LinkKey
    profile: ClientProfile
    declared: Mapping[str, Any] | None = None
    """The capabilities that the caller declared; None if they are no longer known."""


def stored_conversation(task: Task) -> Conversation:
    """The conversation of a task whose caller is not connected: the session under which its server has it, or a new one."""
    handle = task.upstream_handle
    key = LinkKey(generation_of(task), task.principal, place=task.place, conversation=task.conversation_key.stream)
    if handle is None or handle.session_id is None:
        return Conversation(key, ALL_CAPABILITIES)
    resumed = key._replace(session=RESUMED + handle.session_id, resumes=handle.session_id, conversation="")
    return Conversation(resumed, ALL_CAPABILITIES)


def generation_of(task: Task) -> Generation:
    """The generation in which the server has the task. Before the first reply, that of its caller."""
    if task.upstream_handle is not None:
        return task.upstream_handle.generation
    return Generation.STATELESS if task.request_state is not None else task.generation


class Conversations:
    """The conversation of each open task, and which sessions' links must stay open for them."""

    def __init__(self, events: EventHub) -> None:
        self._events = events
        self._of_task: dict[str, Conversation] = {}
        self._in_use: Counter[str] = Counter()

    def remember(self, task_id: str, conversation: Conversation) -> None:
        if task_id not in self._of_task:
            self._of_task[task_id] = conversation
            self.hold(conversation)

    def of(self, task: Task) -> Conversation:
        self.remember(task.id, self._of_task.get(task.id) or stored_conversation(task))
        return self._of_task[task.id]

    def declared(self, task_id: str) -> Mapping[str, Any] | None:
        """The capabilities that the caller of a task declared; None if unknown."""
        conversation = self._of_task.get(task_id)
        return conversation.declared if conversation is not None else None

    def in_use(self, session_id: str) -> bool:
        """Whether a task runs, or is still to run, over the links of this session."""
        return self._in_use[session_id] > 0

    def forget(self, task_id: str) -> None:
        known = self._of_task.pop(task_id, None)
        if known is not None:
            self.release(known)

    def hold(self, conversation: Conversation) -> None:
        self._in_use[conversation.key.session] += 1

    def release(self, conversation: Conversation) -> None:
        session = conversation.key.session
        self._in_use[session] -= 1
        if self._in_use[session] <= 0:
            del self._in_use[session]
            if session:
                self._events.publish(ConversationIdle(session))
