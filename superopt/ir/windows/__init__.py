"""Windows: a tensor that is read along affine combinations of axes, with zeros outside.

    t2 = window[h = 2*ho + r - 1, w = 2*wo + s - 1](x)

The value has the axes ho, r, wo and s in the place of h and w. At each of its positions it is the element
of x at that place, or 0 where x has no such place. Several read axes in parentheses are one index, the
first of them outermost, so that an axis of x may be split after the window was made: `(h0 h1) = 2*ho + r -
1`.

The step only reads. All else is made of the steps that there are:

- a convolution is a contraction of a window with the kernel, over the taps r and s and the channels;
- an average pool is a sum over the taps, divided by how many places count;
- a maximum pool is a maximum of `where(inside, window, -infinity)`, where `inside` compares the place with
  the extent of the axis: the zeros outside are never taken for elements;
- stride, dilation and padding are numbers of the place; groups and depth are axes of the contraction.

The value that is read may have an axis of the place as well, as the taps of

    t2 = contract[c](x, k)
    t3 = window[h = ho + r - 1](t2)

whose t2 has r: then t3 is t2 at the same r, and at that place. A window changes nothing along other axes.

Nothing stores a window. A kernel reads the tensor itself, at offsets, and what it computes it stores before
another kernel reads it through a window. The extents of all axes in a place are fixed: how many windows
there are follows from the size of the tensor by a division that rounds, which no axis of another size would
follow.

For the field there are two forms without windows (`apart` and `explicit`): windows of inputs as inputs of
their own, in which an equality is shown for more tensors than needed; and a window as a contraction with
the mask of equal places, `contract[h](x, eq(index[h], 2*ho + r - 1))`, in which nothing is left out. Before
that, sums of `products` of windows are compared by what they read, and windows are moved `through` what is
computed to what enters; what two in a row read is worked out in full (`tables`).
"""
