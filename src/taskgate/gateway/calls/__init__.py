"""Use cases that send a request to a server: tools, prompts, resources and skills."""
