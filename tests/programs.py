"""Programs that several tests use: functions of tensors for PyTorch, and graphs and a muGraph as text."""

import torch
from torch import Tensor

from superopt.ir import Graph, parse_graph

__all__ = [
    "ATTENTION",
    "CENTERED",
    "MEAN",
    "RMSNORM",
    "TWO_PRODUCTS",
    "attention",
    "differential",
    "edit",
    "gated_backward",
    "log_sum_exp",
    "rooted",
    "squared_weights",
]

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

ATTENTION = """
graph attention
axes h=32 m=16 n=4096 d=128 e=128
in q: f16[m, (h d)]
in k: f16[n, (h d)]
in v: f16[n, (h e)]
s = contract[d](q, k)
c = const[0.08838834764831843]()
t = mul(s, c)
p = exp(t)
z = sum[n](p)
w = div(p, z)
o = contract[n](w, v)
out y: f16[m, (h e)] = o
"""
"""Attention of several heads."""


def edit(text: str, *changes: tuple[str, str]) -> Graph:
    """Return the graph of a text with each change made where it fits exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    return parse_graph(text)


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


MEAN = """graph mean
axes m=6 k=2
in x: f32[m, k]
a = sum[k](x)
b = size[k]()
c = div(a, b)
d = const[2]()
e = mul(c, d)
out y: f32[m] = e
"""
"""Twice the mean of two numbers, which is their sum at no other length of k."""

CENTERED = """graph centered
axes m=2 k=2 n=64
in x: f32[m, k, n]
a = sum[m](x)
b = size[m]()
c = div(a, b)
d = sum[k](x)
e = size[k]()
f = div(d, e)
g = sub(x, c)
h = sub(g, f)
out y: f32[m, k, n] = h
"""
"""Two means, along axes of one length here."""

TWO_PRODUCTS = """graph two
axes m=4 k=8 n=6 r=5
in x: f32[m, k]
in w: f32[k, n]
in v: f32[n, r]
{rounding}kernel grid[m, n]
  loop[k]
    t3 += contract[k](x, w)
kernel grid[m, r]
  loop[n]
    t4 += contract[n](t3, v)
out out: f32[m, r] = t4
"""
"""A muGraph of two kernels, of which the second reads what the first makes, perhaps rounded."""


def gated_backward(dy: Tensor, a: Tensor, b: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Return gradients of a gated MLP: products that leave, of values that later products read."""
    s = torch.sigmoid(a)
    db, da = dy * (a * s), dy * b * s * (1 + a * (1 - s))
    return da.t() @ x, db.t() @ x, (da + db) @ w
