"""Programs that several tests use: functions of two tensors for PyTorch, and a graph as text."""

import torch

__all__ = ["RMSNORM", "attention", "differential", "log_sum_exp", "rooted", "squared_weights"]

RMSNORM = """
graph rmsnorm_linear
axes m=16 k=4096 n=6144
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
a = square(x)
b = sum[k](a)
c = size[k]()
d = div(b, c)
e = const[1e-06]()
f = add(d, e)
r = rsqrt(f)
h = mul(x, r)
i = mul(h, g)
o = contract[k](i, w)
out y: f16[m, n] = o
"""
"""A matmul of a scaled RMS norm."""


def attention(x, v):
    """Return the values weighted by a softmax of the scaled scores."""
    return (x * 0.3).softmax(-1) @ v


def log_sum_exp(x, v):
    """Return the logarithm of the sum of exponentials."""
    return x.logsumexp(-1)


def differential(x, v):
    """Return the values weighted by the difference of two softmaxes."""
    return (x.softmax(-1) - 0.5 * (x * 2).softmax(-1)) @ v


def squared_weights(x, v):
    """Return the sum of the squared weights of a softmax, whose degree is 0."""
    e = torch.exp(x)
    return e.square().sum(-1) / e.sum(-1).square()


def rooted(x, v):
    """Return the root of the sum of the squared weights of a softmax, whose degree is 0."""
    e = torch.exp(x)
    return e.square().sum(-1).sqrt() / e.sum(-1)
