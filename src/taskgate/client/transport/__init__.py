"""How messages travel: streamable HTTP and the standard streams of a child process."""
