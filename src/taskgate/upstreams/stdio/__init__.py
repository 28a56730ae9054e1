"""Child processes as upstreams: `Child`, `ChildSpec`, `Reaper` and how they fail."""

from taskgate.upstreams.stdio.child import Child, ChildExit
from taskgate.upstreams.stdio.failure import ChildFailure, ChildProblem
from taskgate.upstreams.stdio.reaper import Reaper
from taskgate.upstreams.stdio.spec import ChildSpec

__all__ = ["Child", "ChildExit", "ChildFailure", "ChildProblem", "ChildSpec", "Reaper"]
