"""Live: an optimized program as it is called: at other sizes, with other tensors, and in PyTorch's modes."""
