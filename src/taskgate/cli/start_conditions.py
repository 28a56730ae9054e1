"""What a gateway process needs before it starts: open files, disk space, the state folder; and how errors at startup exit."""

from __future__ import annotations

import errno
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from taskgate import clock
from taskgate.assembly.stores import NEEDED_BYTES
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.listen_errors import listen_error
from taskgate.config.load import LoadedConfig
from taskgate.config.problems import ConfigError
from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.inbound.local_address import SERVE, AddressTaken, claim
from taskgate.lifecycle.lost_files import StateLost
from taskgate.local_gateway import LocalGateway, NoExtraEndpoint, OpenExtraEndpoint, files_of
from taskgate.telemetry import logs

MANY_FILES = 65_536
CHECK_EVERY_S, REPORT_EVERY_S = 1.0, 60.0
END_WITHIN_S = 1.4
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def set_up_logs(loaded: LoadedConfig, form: str) -> None:
    logs.set_up(loaded.root.telemetry.log_level, form)
    logs.log.hide(loaded.secret_values.text)


def allow_many_open_files() -> None:
    """Raise the limit of open files, which is often 1,024: every caller and every running call needs a connection."""
    allowed, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MANY_FILES if maximum == resource.RLIM_INFINITY else min(maximum, MANY_FILES)
    if allowed != resource.RLIM_INFINITY and allowed < limit:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, maximum))


def claim_local_address(loaded: LoadedConfig) -> OpenExtraEndpoint:
    try:
        return partial(LocalGateway, claim(files_of(loaded), SERVE))
    except AddressTaken as taken:
        logs.log.warning("another gateway serves local stdio clients", why=str(taken))
        return NoExtraEndpoint


async def wait_for_disk_space(loaded: LoadedConfig) -> None:
    """Wait for disk space. Exiting instead could lead an operator to another state folder, away from accepted tasks."""
    next_report = 0.0
    while _disk_is_full(loaded):
        if clock.monotonic() >= next_report:
            next_report = clock.monotonic() + REPORT_EVERY_S
            text = f"{_disk_full_message(loaded)} The gateway starts as soon as there is space."
            logs.log.error(text)
        await clock.sleep(CHECK_EVERY_S)


def _disk_is_full(loaded: LoadedConfig) -> bool:
    """Whether a file of a few megabytes cannot be written. Other errors of the folder appear when it is used."""
    try:
        with tempfile.TemporaryFile(dir=loaded.state_dir) as probe:
            probe.write(bytes(NEEDED_BYTES))
            probe.flush()
    except OSError as problem:
        return problem.errno in FULL
    return False


def _disk_full_message(loaded: LoadedConfig) -> str:
    needed = f"{NEEDED_BYTES >> 20} MB"
    return f"No space left on the disk of the state folder {loaded.state_dir}: free at least {needed}."


@contextmanager
def state_folder_errors(loaded: LoadedConfig) -> Iterator[None]:
    """Convert OSErrors of the state folder and the store to GatewayFault."""
    try:
        yield
    except OSError as problem:
        if problem.errno in FULL:
            text = f"{_disk_full_message(loaded)} Then start the gateway again."
            raise GatewayFault("store_unavailable", text) from None
        why = problem.strerror or str(problem)
        text = f"The state folder {loaded.state_dir} cannot be used: {why}. Set TASKGATE_STATE_DIR to another one."
        raise GatewayFault("store_unavailable", text) from None


def exit_soon() -> None:
    """Exit even if closing blocks, because another gateway may start and must not run beside this one."""

    def end() -> None:
        threading.Event().wait(END_WITHIN_S)
        os._exit(ExitCode.FAILED)

    threading.Thread(target=end, name="taskgate-end", daemon=True).start()


def run_or_exit(
    run: Callable[[], Coroutine[Any, Any, None]], address: str, leave: Callable[[str, ExitCode], NoReturn]
) -> None:
    """Run until the end, or print an error and exit. Messages are redacted: an address or path may contain a secret."""
    import uvloop

    try:
        uvloop.run(run())
    except ConfigError as error:
        leave(logs.log.without_secrets(str(error)), ExitCode.USAGE)
    except StateLost as problem:
        leave(logs.log.without_secrets(problem.message), ExitCode.FAILED)
    except TaskgateError as problem:
        leave(logs.log.without_secrets(problem.message), ExitCode.USAGE)
    except OSError as problem:
        leave(logs.log.without_secrets(listen_error(address, problem)), ExitCode.CANNOT_CONNECT)


def print_and_exit(why: str, code: ExitCode) -> NoReturn:
    print(why, file=sys.stderr, flush=True)
    sys.exit(code)
