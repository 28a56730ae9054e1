"""A coroutine that runs at once, in the callback that received its input, and that continues in the callback that receives its
reply.

Most requests wait exactly once, for the reply of a server. An asyncio task needs three more iterations of the event loop for
them: one to start, one to be woken, and one to be removed. An `EagerTask` needs none. It becomes an asyncio task as soon as it
waits for anything else, or when it is cancelled. For asyncio it is a task of a third party (docs: extending asyncio), so
`current_task` returns it and `asyncio.timeout` works. anyio, and with it httpx2, needs a task that stays the same: see
`continue_in_asyncio_task`.
"""

from __future__ import annotations

import asyncio
from asyncio import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar, Union

import msgspec

from taskgate import clock

T = TypeVar("T")
_ENDED: Final[Any] = object()


class ReplyFuture(asyncio.Future[T]):
    """A Future whose receiver calls `wake` after it has set the result and has nothing else to do.

    `wake` continues the waiting `EagerTask` at once. Tasks that wait for it are continued by the event loop, as usual.
    """

    _waiter: Callable[[], None] | None = None

    def set_waiter(self, waiter: Callable[[], None] | None) -> None:
        """Set what `wake` calls. None: an asyncio task waits instead, to which the Future was just yielded."""
        self._waiter = waiter
        self._asyncio_future_blocking = waiter is None

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter()


AnyTask = Union["EagerTask", asyncio.Task[Any]]
"""What carries a request. Both can be cancelled."""


def asyncio_task(task: AnyTask) -> asyncio.Task[Any]:
    """Return the asyncio task itself, or the one that an `EagerTask` becomes."""
    return task.as_task() if isinstance(task, EagerTask) else task


async def continue_in_asyncio_task() -> None:
    """What follows runs in an asyncio task: anyio refers to the current task while a block of its own is open."""
    if isinstance(asyncio.current_task(), EagerTask):
        await clock.sleep(0)


class EagerTask(msgspec.Struct, eq=False):
    """Runs a coroutine that returns nothing. `on_done` is called with this object when it has ended."""

    _steps: Generator[Any, Any, None]
    """The iterator of the coroutine, which `next` runs to its end without an exception: raising StopIteration costs more."""
    _loop: asyncio.AbstractEventLoop
    _on_done: Callable[[EagerTask], None]
    _context: Context
    _waits_for: ReplyFuture[Any] | None = None
    _task: asyncio.Task[None] | None = None
    """The asyncio task that it has become."""
    _cancelled: tuple[Any] | None = None
    """The message of a cancellation by the coroutine itself, before it became an asyncio task."""
    _ended: bool = False

    def run(self) -> None:
        """Run the coroutine until it ends or waits."""
        try:
            _enter_task(self._loop, self)  # type: ignore[arg-type]
        except RuntimeError:
            # The callback was called by a task.
            self._become_task(None)
            return
        self._waits_for = future = None
        ended = False
        try:
            future = self._context.run(next, self._steps, _ENDED)
            ended = future is _ENDED
        except asyncio.CancelledError:
            ended = True
        except Exception as fault:
            ended = True
            context = {"message": "request failed", "exception": fault}
            self._loop.call_exception_handler(context)
        finally:
            _leave_task(self._loop, self)  # type: ignore[arg-type]
        if ended:
            self._end()
        elif type(future) is ReplyFuture and self._cancelled is None and not future.done():
            future.set_waiter(self.run)
            self._waits_for = future
        else:
            self._become_task(future)

    def _become_task(self, future: asyncio.Future[Any] | None) -> None:
        """Continue in an asyncio task, which waits for this future first."""
        waits_for, self._waits_for = self._waits_for, None
        if waits_for is not None:
            waits_for.set_waiter(None)
            future = waits_for
        rest = _Rest(self._steps, future)
        task = self._task = self._loop.create_task(rest, context=self._context)
        task.add_done_callback(lambda _task: self._end())
        if self._cancelled is not None:
            task.cancel(*self._cancelled)

    def _end(self) -> None:
        self._ended = True
        self._on_done(self)

    def as_task(self) -> asyncio.Task[None]:
        """Return the asyncio task that carries the coroutine from now on. Not to be called by the coroutine itself, nor after
        its end."""
        if self._task is None:
            if self._ended:
                raise RuntimeError("the coroutine has ended")
            self._become_task(None)
        assert self._task is not None
        return self._task

    def cancel(self, msg: Any = None) -> bool:
        if self._task is None:
            if self._ended:
                return False
            if self._waits_for is None:
                # It cancels itself: the cancellation takes effect where it waits next.
                self._cancelled = (msg,)
                return True
            self._become_task(None)
        assert self._task is not None
        return self._task.cancel(msg)

    def uncancel(self) -> int:
        return self._task.uncancel() if self._task is not None else 0

    def cancelling(self) -> int:
        return self._task.cancelling() if self._task is not None else 0


class _Rest(Coroutine[Any, Any, None]):
    """A coroutine that has begun and yielded a future, as an asyncio task expects it: it yields that future first."""

    __slots__ = ("_future", "_steps")

    def __init__(self, steps: Generator[Any, Any, None], future: asyncio.Future[Any] | None) -> None:
        self._steps = steps
        self._future = future

    def send(self, value: None) -> Any:
        future, self._future = self._future, None
        return future if future is not None else self._steps.send(value)

    def throw(self, *exception: Any) -> Any:
        future, self._future = self._future, None
        if future is not None:
            # Cancelled before the task began to wait. As a task does: cancel what is waited for, and wait until it has ended.
            if future.cancel(*exception[0].args):
                return future
            if not future.cancelled():
                # The cancellation replaces its exception. asyncio logs an exception that was never retrieved.
                future.exception()
        return self._steps.throw(*exception)

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Any:
        raise TypeError("an EagerTask carries this coroutine")
