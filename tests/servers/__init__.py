"""Published servers, called directly and through Taskgate: both must return the same. See docs/compatibility.md."""
