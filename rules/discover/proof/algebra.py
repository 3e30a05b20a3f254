"""The axioms of the algebra on matrices, as lines that `axioms` parses."""

from __future__ import annotations

__all__ = ["ALGEBRA"]

ALGEBRA = """
product-over           a[m, n] b[m, n] c[m, n]: div(mul(a, b), c) = mul(a, div(b, c))
sum-over               a[m, n] b[m, n] c[m, n]: div(add(a, b), c) = add(div(a, c), div(b, c))
over-twice             a[m, n] b[m, n] c[m, n]: div(div(a, b), c) = div(a, mul(b, c))
scaled-over            s[] a[m, n] b[m, n]: div(scale(s, a), b) = scale(s, div(a, b))
over-exponential       a[m, n] b[m, n]: div(mul(a, exp(b)), exp(b)) = a
square-is-product      a[m, n]: square(a) = mul(a, a)
exponential-of-sum     a[m, n] b[m, n]: exp(add(a, b)) = mul(exp(a), exp(b))
exponential-of-max     a[m, n] b[m, n]: exp(max(a, b)) = max(exp(a), exp(b))
logarithm-undoes       a[m, n]: log(exp(a)) = a
root-of-square         a[m, n]: sqrt(mul(a, a)) = abs(a)
root-of-abs            a[m, n]: mul(sqrt(abs(a)), sqrt(abs(a))) = abs(a)
roots-of-abs           a[m, n] b[m, n]: sqrt(mul(abs(a), abs(b))) = mul(sqrt(abs(a)), sqrt(abs(b)))
root-of-max            a[m, n] b[m, n]: sqrt(max(abs(a), abs(b))) = max(sqrt(abs(a)), sqrt(abs(b)))
abs-of-product         a[m, n] b[m, n]: abs(mul(a, b)) = mul(abs(a), abs(b))
abs-of-over            a[m, n] b[m, n]: abs(div(a, b)) = div(abs(a), abs(b))
abs-of-sum             a[m, n]: abs(add(a, a)) = add(abs(a), abs(a))
abs-times-itself       a[m, n]: mul(abs(a), abs(a)) = mul(a, a)
abs-and-itself         a[m, n]: add(a, abs(a)) = add(relu(a), relu(a))
max-with-abs           a[m, n]: max(a, abs(a)) = abs(a)
max-of-itself          a[m, n]: max(a, a) = a
maxima-associate       a[m, n] b[m, n] c[m, n]: max(a, max(b, c)) = max(max(a, b), c)
max-of-sums            a[m, n] b[m, n] c[m, n]: max(add(a, c), add(b, c)) = add(max(a, b), c)
max-with-relu          a[m, n]: max(a, relu(a)) = relu(a)
relu-of-max            a[m, n] b[m, n]: relu(max(a, b)) = max(relu(a), relu(b))
relu-of-one-of-max     a[m, n] b[m, n]: relu(max(a, b)) = max(relu(a), b)
relu-beside            a[m, n] b[m, n]: relu(max(a, b)) = max(a, relu(b))
max-times-relu         a[m, n] b[m, n] c[m, n]: mul(relu(c), max(a, b)) =
  max(mul(relu(c), a), mul(relu(c), b))
max-times-exponential  a[m, n] b[m, n] c[m, n]: mul(exp(c), max(a, b)) = max(mul(exp(c), a), mul(exp(c), b))
less-of-sums           a[m, n] b[m, n] c[m, n]: less(add(a, c), add(b, c)) = less(a, b)
less-of-exponentials   a[m, n] b[m, n]: less(exp(a), exp(b)) = less(a, b)
less-than-max          a[m, n] b[m, n]: less(a, max(a, b)) = less(a, b)
less-is-zero-or-one    a[m, n] b[m, n]: mul(less(a, b), less(a, b)) = less(a, b)
chosen-sum             a[m, n] b[m, n] c[m, n]: where(c, add(a, b)) = add(where(c, a), where(c, b))
chosen-max             a[m, n] b[m, n] c[m, n]: where(c, max(a, b)) = max(where(c, a), where(c, b))
chosen-relu            a[m, n] c[m, n]: where(c, relu(a)) = relu(where(c, a))
chosen-abs             a[m, n] c[m, n]: where(c, abs(a)) = abs(where(c, a))
chosen-product         a[m, n] b[m, n] c[m, n]: where(c, mul(a, b)) = mul(where(c, a), where(c, b))
chosen-by-itself       a[m, n]: where(a, a) = a
chosen-by-abs          a[m, n] c[m, n]: where(abs(c), a) = where(c, a)
chosen-by-sum          a[m, n] c[m, n]: where(add(c, c), a) = where(c, a)
chosen-by-square       a[m, n] c[m, n]: where(mul(c, c), a) = where(c, a)
chosen-smaller         a[m, n] b[m, n]: where(less(a, b), a) = mul(a, less(a, b))
chosen-larger          a[m, n] b[m, n]: where(less(a, b), b) = mul(b, less(a, b))
chosen-twice           a[m, n] c[m, n]: where(c, where(c, a)) = where(c, a)
transposed-div         a[m, n] b[m, n]: transpose(div(a, b)) = div(transpose(a), transpose(b))
transposed-exp         a[m, n]: transpose(exp(a)) = exp(transpose(a))
transposed-log         a[m, n]: transpose(log(a)) = log(transpose(a))
transposed-sqrt        a[m, n]: transpose(sqrt(a)) = sqrt(transpose(a))
transposed-abs         a[m, n]: transpose(abs(a)) = abs(transpose(a))
transposed-max         a[m, n] b[m, n]: transpose(max(a, b)) = max(transpose(a), transpose(b))
transposed-less        a[m, n] b[m, n]: transpose(less(a, b)) = less(transpose(a), transpose(b))
transposed-where       a[m, n] b[m, n]: transpose(where(a, b)) = where(transpose(a), transpose(b))
sums-of-sum            a[m, n] b[m, n]: sum_cols(add(a, b)) = add(sum_cols(a), sum_cols(b))
sums-of-scaled         s[] a[m, n]: sum_cols(scale(s, a)) = scale(s, sum_cols(a))
sums-of-joined-rows    a[m, n] b[p, n]: sum_cols(concat_rows(a, b)) = concat_rows(sum_cols(a), sum_cols(b))
sums-of-joined-cols    a[m, n] b[m, p]: sum_cols(concat_cols(a, b)) = add(sum_cols(a), sum_cols(b))
sums-of-matmul         a[m, k] b[k, n]: sum_cols(matmul(a, b)) = matmul(a, sum_cols(b))
sums-as-matmul         a[m, n] ones[n, 1]: sum_cols(a) = matmul(a, ones)
sums-of-scaled-rows    v[m, 1] a[m, n]: sum_cols(scale_rows(v, a)) = mul(v, sum_cols(a))
sum-of-column          a[m, 1]: sum_cols(a) = a
maxima-of-joined-rows  a[m, n] b[p, n]: max_cols(concat_rows(a, b)) = concat_rows(max_cols(a), max_cols(b))
maxima-of-joined-cols  a[m, n] b[m, p]: max_cols(concat_cols(a, b)) = max(max_cols(a), max_cols(b))
maxima-of-max          a[m, n] b[m, n]: max_cols(max(a, b)) = max(max_cols(a), max_cols(b))
maxima-of-doubled      a[m, n]: max_cols(add(a, a)) = add(max_cols(a), max_cols(a))
maxima-of-relu         a[m, n]: max_cols(relu(a)) = relu(max_cols(a))
maxima-of-exponential  a[m, n]: max_cols(exp(a)) = exp(max_cols(a))
max-of-column          a[m, 1]: max_cols(a) = a
scaled-rows-of-sum     v[m, 1] a[m, n] b[m, n]: scale_rows(v, add(a, b)) =
  add(scale_rows(v, a), scale_rows(v, b))
sum-of-scaled-rows     v[m, 1] u[m, 1] a[m, n]: scale_rows(add(v, u), a) =
  add(scale_rows(v, a), scale_rows(u, a))
scaled-rows-of-product v[m, 1] a[m, n] b[m, n]: scale_rows(v, mul(a, b)) = mul(scale_rows(v, a), b)
scaled-rows-of-over    v[m, 1] a[m, n] b[m, n]: scale_rows(v, div(a, b)) = div(scale_rows(v, a), b)
scaled-rows-twice      v[m, 1] u[m, 1] a[m, n]: scale_rows(mul(v, u), a) = scale_rows(v, scale_rows(u, a))
scaled-rows-of-matmul  v[m, 1] a[m, k] b[k, n]: scale_rows(v, matmul(a, b)) = matmul(scale_rows(v, a), b)
scaled-rows-of-scaled  s[] v[m, 1] a[m, n]: scale_rows(scale(s, v), a) = scale(s, scale_rows(v, a))
scaled-rows-scaled     s[] v[m, 1] a[m, n]: scale_rows(v, scale(s, a)) = scale(s, scale_rows(v, a))
scaled-rows-of-joined  v[m, 1] a[m, n] b[m, p]: scale_rows(v, concat_cols(a, b)) =
  concat_cols(scale_rows(v, a), scale_rows(v, b))
joined-scaled-rows     v[m, 1] u[p, 1] a[m, n] b[p, n]: scale_rows(concat_rows(v, u), concat_rows(a, b)) =
  concat_rows(scale_rows(v, a), scale_rows(u, b))
scaled-column          v[m, 1] a[m, 1]: scale_rows(v, a) = mul(v, a)
times-identity         a[m, n] eye[n, n]: matmul(a, eye) = a
identity-times         a[m, n] eye[m, m]: matmul(eye, a) = a
identity-transposed    eye[m, m]: transpose(eye) = eye
identity-squared       eye[m, m]: mul(eye, eye) = eye
diagonal-transposed    a[m, m] eye[m, m]: transpose(mul(a, eye)) = mul(a, eye)
scaled-by-diagonal     a[m, k] b[m, k] e[k, k] eye[k, k]: matmul(mul(a, b), mul(e, eye)) =
  mul(a, matmul(b, mul(e, eye)))
diagonal-scales        a[k, n] b[k, n] e[k, k] eye[k, k]: matmul(mul(e, eye), mul(a, b)) =
  mul(a, matmul(mul(e, eye), b))
scaled-by-diagonals    a[m, k] b[m, k] e[k, k] f[k, k] eye[k, k]: matmul(mul(a, b), mul(e, mul(f, eye))) =
  mul(matmul(a, mul(e, eye)), matmul(b, mul(f, eye)))
diagonals-scale        a[k, n] b[k, n] e[k, k] f[k, k] eye[k, k]: matmul(mul(e, mul(f, eye)), mul(a, b)) =
  mul(matmul(mul(e, eye), a), matmul(mul(f, eye), b))
times-ones             a[m, n] ones[m, n]: mul(a, ones) = a
ones-transposed        ones[m, n] ones2[n, m]: transpose(ones) = ones2
ones-joined-rows       ones[m, n] ones2[p, n] ones3[m+p, n]: concat_rows(ones, ones2) = ones3
ones-joined-cols       ones[m, n] ones2[m, p] ones3[m, n+p]: concat_cols(ones, ones2) = ones3
plus-zeros             a[m, n] zeros[m, n]: add(a, zeros) = a
times-zeros            a[m, n] zeros[m, n]: mul(a, zeros) = zeros
zeros-scaled           s[] zeros[m, n]: scale(s, zeros) = zeros
zeros-transposed       zeros[m, n] zeros2[n, m]: transpose(zeros) = zeros2
matmul-of-zeros        a[m, k] zeros[k, n] zeros2[m, n]: matmul(a, zeros) = zeros2
zeros-times-matrix     zeros[m, k] a[k, n] zeros2[m, n]: matmul(zeros, a) = zeros2
zeros-joined-rows      zeros[m, n] zeros2[p, n] zeros3[m+p, n]: concat_rows(zeros, zeros2) = zeros3
zeros-joined-cols      zeros[m, n] zeros2[m, p] zeros3[m, n+p]: concat_cols(zeros, zeros2) = zeros3
zeros-rows-0           zeros3[m+p, n] zeros[m, n]: split_rows(zeros3, m)[0] = zeros
zeros-rows-1           zeros3[m+p, n] zeros[p, n]: split_rows(zeros3, m)[1] = zeros
zeros-cols-0           zeros3[m, n+p] zeros[m, n]: split_cols(zeros3, n)[0] = zeros
zeros-cols-1           zeros3[m, n+p] zeros[m, p]: split_cols(zeros3, n)[1] = zeros
eye-rows-0             eye3[m+p, m+p] eye[m, m] zeros[m, p]: split_rows(eye3, m)[0] = concat_cols(eye, zeros)
eye-rows-1             eye3[m+p, m+p] eye[p, p] zeros[p, m]: split_rows(eye3, m)[1] = concat_cols(zeros, eye)
eye-cols-0             eye3[m+p, m+p] eye[m, m] zeros[p, m]: split_cols(eye3, m)[0] = concat_rows(eye, zeros)
eye-cols-1             eye3[m+p, m+p] eye[p, p] zeros[m, p]: split_cols(eye3, m)[1] = concat_rows(zeros, eye)
over-ones              a[m, n] ones[m, n]: div(a, ones) = a
exponential-of-root    a[m, n] ones[m, n]: mul(sqrt(exp(a)), sqrt(exp(a))) = exp(a)
"""

_EACH = """
{f}-of-joined-rows     a[m, n] b[p, n]: {f}(concat_rows(a, b)) = concat_rows({f}(a), {f}(b))
{f}-of-joined-cols     a[m, n] b[m, p]: {f}(concat_cols(a, b)) = concat_cols({f}(a), {f}(b))
rows-0-of-{f}          a[m+p, n]: split_rows({f}(a), m)[0] = {f}(split_rows(a, m)[0])
rows-1-of-{f}          a[m+p, n]: split_rows({f}(a), m)[1] = {f}(split_rows(a, m)[1])
cols-0-of-{f}          a[m, n+p]: split_cols({f}(a), n)[0] = {f}(split_cols(a, n)[0])
cols-1-of-{f}          a[m, n+p]: split_cols({f}(a), n)[1] = {f}(split_cols(a, n)[1])
"""

_EACH_TWO = """
{f}-of-joined-rows     a[m, n] b[p, n] c[m, n] d[p, n]: {f}(concat_rows(a, b), concat_rows(c, d)) =
  concat_rows({f}(a, c), {f}(b, d))
{f}-of-joined-cols     a[m, n] b[m, p] c[m, n] d[m, p]: {f}(concat_cols(a, b), concat_cols(c, d)) =
  concat_cols({f}(a, c), {f}(b, d))
rows-0-of-{f}          a[m+p, n] b[m+p, n]: split_rows({f}(a, b), m)[0] =
  {f}(split_rows(a, m)[0], split_rows(b, m)[0])
rows-1-of-{f}          a[m+p, n] b[m+p, n]: split_rows({f}(a, b), m)[1] =
  {f}(split_rows(a, m)[1], split_rows(b, m)[1])
cols-0-of-{f}          a[m, n+p] b[m, n+p]: split_cols({f}(a, b), n)[0] =
  {f}(split_cols(a, n)[0], split_cols(b, n)[0])
cols-1-of-{f}          a[m, n+p] b[m, n+p]: split_cols({f}(a, b), n)[1] =
  {f}(split_cols(a, n)[1], split_cols(b, n)[1])
"""

ALGEBRA += "".join(_EACH.format(f=f).lstrip("\n") for f in ("exp", "log", "sqrt", "abs"))
ALGEBRA += "".join(_EACH_TWO.format(f=f).lstrip("\n") for f in ("div", "max", "less", "where"))
