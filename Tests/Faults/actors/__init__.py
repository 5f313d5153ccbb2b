"""Who takes part: the gateway as a process with its log, clients, devices that misbehave on order. One event loop runs all."""
