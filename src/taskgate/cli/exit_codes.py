"""Exit codes of all commands. Scripts rely on them; `taskgate --help` prints them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    """The tool returned an error, or the task failed."""
    USAGE = 2
    """The command line or the configuration is invalid."""
    CANNOT_CONNECT = 3
    """The gateway or server cannot be reached, or is overloaded; or the port cannot be bound."""
    REFUSED = 4
    """A rule, a policy or an approver denied the call, or the token was refused."""
    TIMED_OUT = 5
    CANCELLED = 6
    OUTCOME_UNKNOWN = 7
    """The call may or may not have taken effect."""
    NOT_FOUND = 8
    """There is no such tool, task or approval."""
    UNHEALTHY = 9
    """`taskgate doctor` or `taskgate audit verify` found a problem."""
    DIFFERENT = 10
    """`taskgate policy diff` found changed decisions, or could not compare a server."""
    INTERNAL = 70
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "success",
    ExitCode.FAILED: "the tool returned an error, or the task failed",
    ExitCode.USAGE: "the command line or the configuration is invalid",
    ExitCode.CANNOT_CONNECT: "the gateway or server cannot be reached or is overloaded, or the port cannot be bound",
    ExitCode.REFUSED: "a rule, a policy or an approver denied the call, or the token was refused",
    ExitCode.TIMED_OUT: "timeout",
    ExitCode.CANCELLED: "the call or task was cancelled",
    ExitCode.OUTCOME_UNKNOWN: "the call may or may not have taken effect",
    ExitCode.NOT_FOUND: "there is no such tool, task or approval",
    ExitCode.UNHEALTHY: "doctor or audit verify found a problem",
    ExitCode.DIFFERENT: "policy diff found changed decisions, or could not compare a server",
    ExitCode.INTERNAL: "internal error",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}
