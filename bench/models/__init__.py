"""Models: a step by eager PyTorch, by Inductor, by other compilers, and by superopt's backend.

`case` builds one model and measures it in a process, `peers` are the other compilers, and `command` starts
the processes and holds the results together.
"""
