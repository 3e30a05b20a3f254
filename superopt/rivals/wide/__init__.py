"""Wide: products, convolutions and attention in half precision, computed in float32 where that is faster.

PyTorch's libraries multiply bf16 and fp16 many times slower than float32 on processors that have no
instructions for them.
"""
