"""Graphs: a folder of captured PyTorch graphs, each run through the backend in a process of its own.

`folder` finds the graphs and draws a sample, `captured` makes a module and its inputs of files, `measure`
is what a process does with one graph, `launch` starts that process and limits it, and `command` holds all
together. What a folder holds is the code of others: it runs in these processes only.
"""
