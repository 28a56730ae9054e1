"""Scripts of tool calls: names, stubs, checks of the source, the plan, and the seal of snapshots."""
