"""Pure decisions over frozen values: no input or output, no clock, no randomness, no logging, nothing asynchronous."""
