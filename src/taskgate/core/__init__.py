"""Pure decisions over immutable values: no I/O, no clock, no randomness, no logging, nothing asynchronous."""
