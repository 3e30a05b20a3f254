"""Deferred work: what a budget left undone, kept in the cache and worked off later.

queue        the pending regions, as records of the cache
portable     a region as plain data, and back
mode         whether work is deferred at all, and who works it off
lock         one process tunes at a time
work         pending regions decided with a large budget, by the same race as every other region
helper       the process of low priority that works the queue off beside a program
live         the program's side: it starts the helper and, between two calls, takes up new kernels
"""
