"""The actors: the gateway as a process with its log, clients, and devices that misbehave on command. One event loop
runs all."""
