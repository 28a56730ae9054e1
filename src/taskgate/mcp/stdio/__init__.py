"""Child processes with line-based standard streams: `Child`, `ChildSpec`, `Reaper` and their failures."""

from taskgate.mcp.failures import ChildFailure, ChildProblem
from taskgate.mcp.stdio.child import Child, ChildExit
from taskgate.mcp.stdio.process import ChildSpec
from taskgate.mcp.stdio.reaper import Reaper

__all__ = ["Child", "ChildExit", "ChildFailure", "ChildProblem", "ChildSpec", "Reaper"]
