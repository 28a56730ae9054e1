"""Child processes as upstreams: `Child`, `ChildSpec`, `Reaper` and how they fail."""

from taskgate.mcp.failures import ChildFailure, ChildProblem
from taskgate.mcp.stdio.child import Child, ChildExit
from taskgate.mcp.stdio.process import ChildSpec, Reaper

__all__ = ["Child", "ChildExit", "ChildFailure", "ChildProblem", "ChildSpec", "Reaper"]
