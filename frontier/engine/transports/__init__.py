"""The transports of the engine: one worker in this process, or forked processes."""
