"""The servers' lists (tools, prompts, resources, skills), and the view of them that each caller gets."""
