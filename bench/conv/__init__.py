"""Conv: blocks of convolutional nets by superopt's backend, against eager PyTorch, Inductor, and others.

`blocks` has the blocks and the images that they are given, `command` measures them.
"""
