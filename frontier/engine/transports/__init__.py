"""The transports of the engine: one worker, forked processes, ranks of MPI, or actors of Ray."""
