"""The axioms of operators on images, as lines that `axioms` parses: convolutions, pools and borders."""

from __future__ import annotations

from superopt.rules.discover.language.images import CONVOLUTIONS

__all__ = ["IMAGES"]

_CONVOLUTIONS = """
{f}-of-sum             x[n, c, h, w] y[n, c, h, w] v[o, c, r, s]: {f}(add(x, y), v) =
  add({f}(x, v), {f}(y, v))
{f}-of-weights-sum     x[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: {f}(x, add(v, u)) =
  add({f}(x, v), {f}(x, u))
{f}-of-scaled          t[] x[n, c, h, w] v[o, c, r, s]: {f}(scale(t, x), v) = scale(t, {f}(x, v))
{f}-of-scaled-weights  t[] x[n, c, h, w] v[o, c, r, s]: {f}(x, scale(t, v)) = scale(t, {f}(x, v))
{f}-of-joined-samples  x[n, c, h, w] y[m, c, h, w] v[o, c, r, s]: {f}(concat_rows(x, y), v) =
  concat_rows({f}(x, v), {f}(y, v))
{f}-of-samples-0       x[n+m, c, h, w] v[o, c, r, s]: split_rows({f}(x, v), n)[0] =
  {f}(split_rows(x, n)[0], v)
{f}-of-samples-1       x[n+m, c, h, w] v[o, c, r, s]: split_rows({f}(x, v), n)[1] =
  {f}(split_rows(x, n)[1], v)
{f}-joined-weights     x[n, c, h, w] v[o, c, r, s] u[p, c, r, s]: {f}(x, concat_rows(v, u)) =
  concat_cols({f}(x, v), {f}(x, u))
{f}-of-weights-0       x[n, c, h, w] v[o+p, c, r, s]: split_cols({f}(x, v), o)[0] =
  {f}(x, split_rows(v, o)[0])
{f}-of-weights-1       x[n, c, h, w] v[o+p, c, r, s]: split_cols({f}(x, v), o)[1] =
  {f}(x, split_rows(v, o)[1])
{f}-in-parts           x[n, c, h, w] y[n, d, h, w] v[o, c, r, s] u[o, d, r, s]:
  {f}(concat_cols(x, y), concat_cols(v, u)) = add({f}(x, v), {f}(y, u))
{f}-in-split-parts     x[n, c+d, h, w] v[o, c+d, r, s]: {f}(x, v) =
  add({f}(split_cols(x, c)[0], split_cols(v, c)[0]), {f}(split_cols(x, c)[1], split_cols(v, c)[1]))
"""

_GROUPS = """
{f}-of-sum             x[n, c+c, h, w] y[n, c+c, h, w] v[o+o, c, r, s]: {f}(add(x, y), v) =
  add({f}(x, v), {f}(y, v))
{f}-of-weights-sum     x[n, c+c, h, w] v[o+o, c, r, s] u[o+o, c, r, s]: {f}(x, add(v, u)) =
  add({f}(x, v), {f}(x, u))
{f}-of-scaled          t[] x[n, c+c, h, w] v[o+o, c, r, s]: {f}(scale(t, x), v) = scale(t, {f}(x, v))
{f}-of-scaled-weights  t[] x[n, c+c, h, w] v[o+o, c, r, s]: {f}(x, scale(t, v)) = scale(t, {f}(x, v))
{f}-of-joined-samples  x[n, c+c, h, w] y[m, c+c, h, w] v[o+o, c, r, s]: {f}(concat_rows(x, y), v) =
  concat_rows({f}(x, v), {f}(y, v))
{f}-of-samples-0       x[n+m, c+c, h, w] v[o+o, c, r, s]: split_rows({f}(x, v), n)[0] =
  {f}(split_rows(x, n)[0], v)
{f}-of-samples-1       x[n+m, c+c, h, w] v[o+o, c, r, s]: split_rows({f}(x, v), n)[1] =
  {f}(split_rows(x, n)[1], v)
{f}-are-convolutions   x[n, c, h, w] y[n, c, h, w] v[o, c, r, s] u[o, c, r, s]:
  {f}(concat_cols(x, y), concat_rows(v, u)) = concat_cols({g}(x, v), {g}(y, u))
{f}-of-one-image       x[n, c, h, w] v[o+o, c, r, s]: {f}(concat_cols(x, x), v) = {g}(x, v)
{f}-apart              x[n, c+c, h, w] v[o+o, c, r, s]: {f}(x, v) =
  concat_cols({g}(split_cols(x, c)[0], split_rows(v, o)[0]),
  {g}(split_cols(x, c)[1], split_rows(v, o)[1]))
"""

_DEPTH = """
{f}-of-sum             x[n, c, h, w] y[n, c, h, w] v[c, 1, r, s]: {f}(add(x, y), v) =
  add({f}(x, v), {f}(y, v))
{f}-of-weights-sum     x[n, c, h, w] v[c, 1, r, s] u[c, 1, r, s]: {f}(x, add(v, u)) =
  add({f}(x, v), {f}(x, u))
{f}-of-scaled          t[] x[n, c, h, w] v[c, 1, r, s]: {f}(scale(t, x), v) = scale(t, {f}(x, v))
{f}-of-scaled-weights  t[] x[n, c, h, w] v[c, 1, r, s]: {f}(x, scale(t, v)) = scale(t, {f}(x, v))
{f}-of-joined-samples  x[n, c, h, w] y[m, c, h, w] v[c, 1, r, s]: {f}(concat_rows(x, y), v) =
  concat_rows({f}(x, v), {f}(y, v))
{f}-of-samples-0       x[n+m, c, h, w] v[c, 1, r, s]: split_rows({f}(x, v), n)[0] =
  {f}(split_rows(x, n)[0], v)
{f}-of-samples-1       x[n+m, c, h, w] v[c, 1, r, s]: split_rows({f}(x, v), n)[1] =
  {f}(split_rows(x, n)[1], v)
{f}-of-joined-channels x[n, c, h, w] y[n, d, h, w] v[c, 1, r, s] u[d, 1, r, s]:
  {f}(concat_cols(x, y), concat_rows(v, u)) = concat_cols({f}(x, v), {f}(y, u))
{f}-of-channels-0      x[n, c+d, h, w] v[c+d, 1, r, s]: split_cols({f}(x, v), c)[0] =
  {f}(split_cols(x, c)[0], split_rows(v, c)[0])
{f}-of-channels-1      x[n, c+d, h, w] v[c+d, 1, r, s]: split_cols({f}(x, v), c)[1] =
  {f}(split_cols(x, c)[1], split_rows(v, c)[1])
"""

# A pool of what was joined is joined of pools, and a part of a pool is the pool of that part.
_PARTS = """\
{f}-of-rows        x[n, c, h, w] y[m, c, h, w]: {f}(concat_rows(x, y)) =
  concat_rows({f}(x), {f}(y))
{f}-of-cols        x[n, c, h, w] y[n, d, h, w]: {f}(concat_cols(x, y)) =
  concat_cols({f}(x), {f}(y))
{f}-of-samples-0   x[n+m, c, h, w]: split_rows({f}(x), n)[0] = {f}(split_rows(x, n)[0])
{f}-of-samples-1   x[n+m, c, h, w]: split_rows({f}(x), n)[1] = {f}(split_rows(x, n)[1])
{f}-of-channels-0  x[n, c+d, h, w]: split_cols({f}(x), c)[0] = {f}(split_cols(x, c)[0])
{f}-of-channels-1  x[n, c+d, h, w]: split_cols({f}(x), c)[1] = {f}(split_cols(x, c)[1])
"""

_AVERAGES = (
    """
{f}-of-sum         x[n, c, h, w] y[n, c, h, w]: {f}(add(x, y)) = add({f}(x), {f}(y))
{f}-of-scaled      t[] x[n, c, h, w]: {f}(scale(t, x)) = scale(t, {f}(x))
"""
    + _PARTS
)

_LARGEST = (
    """
{f}-of-relu        x[n, c, h, w]: {f}(relu(x)) = relu({f}(x))
"""
    + _PARTS
    + """\
{f}-doubled        x[n, c, h, w]: {f}(add(x, x)) = add({f}(x), {f}(x))
{f}-scaled         t[] x[n, c, h, w]: {f}(scale(t, scale(t, x))) = scale(t, scale(t, {f}(x)))
"""
)

_BORDERS = """
{f}-sum           v[o, c, r, s] u[o, c, r, s]: {f}(add(v, u)) = add({f}(v), {f}(u))
{f}-product       v[o, c, r, s] u[o, c, r, s]: {f}(mul(v, u)) = mul({f}(v), {f}(u))
{f}-scaled        t[] v[o, c, r, s]: {f}(scale(t, v)) = scale(t, {f}(v))
{f}-relu          v[o, c, r, s]: {f}(relu(v)) = relu({f}(v))
{f}-rows          v[o, c, r, s] u[p, c, r, s]: {f}(concat_rows(v, u)) =
  concat_rows({f}(v), {f}(u))
{f}-cols          v[o, c, r, s] u[o, d, r, s]: {f}(concat_cols(v, u)) =
  concat_cols({f}(v), {f}(u))
{f}-rows-0        v[o+p, c, r, s]: split_rows({f}(v), o)[0] = {f}(split_rows(v, o)[0])
{f}-rows-1        v[o+p, c, r, s]: split_rows({f}(v), o)[1] = {f}(split_rows(v, o)[1])
{f}-cols-0        v[o, c+d, r, s]: split_cols({f}(v), c)[0] = {f}(split_cols(v, c)[0])
{f}-cols-1        v[o, c+d, r, s]: split_cols({f}(v), c)[1] = {f}(split_cols(v, c)[1])
"""

_OTHERS = """
same-identity          x[n, c, h, w] dirac[c, c, r, s]: conv_same(x, dirac) = x
identity-enlarged      dirac[c, c, r, s] dirac2[c, c, wide(r), wide(s)]: enlarge(dirac) = dirac2
average-is-convolution x[n, c, h, w] box[c, c, 3, 3]: avg_pool(x) = conv_same(x, box)
average-of-weighted    x[n, c, h, w] v[o, c, 1, 1]: avg_pool(conv_same(x, v)) = conv_same(avg_pool(x), v)
half-is-every-second   x[n, c, h, w] v[o, c, r, s] dirac[o, o, p, q]: conv_half(conv_same(x, v), dirac) =
  conv_half(x, v)
half-groups            x[n, c+c, h, w] v[o+o, c, r, s] dirac[o+o, o+o, p, q]:
  conv_half(conv_groups(x, v), dirac) = conv_half_groups(x, v)
half-depth             x[n, c, h, w] v[c, 1, r, s] dirac[c, c, p, q]: conv_half(conv_depth(x, v), dirac) =
  conv_half_depth(x, v)
half-of-average        x[n, c, h, w] dirac[c, c, p, q]: conv_half(avg_pool(x), dirac) = avg_pool_half(x)
half-of-largest        x[n, c, h, w] dirac[c, c, p, q]: conv_half(max_pool(x), dirac) = max_pool_half(x)
half-of-relu           x[n, c, h, w] dirac[c, c, p, q]: conv_half(relu(x), dirac) = relu(conv_half(x, dirac))
half-of-product        x[n, c, h, w] y[n, c, h, w] dirac[c, c, p, q]: conv_half(mul(x, y), dirac) =
  mul(conv_half(x, dirac), conv_half(y, dirac))
half-average           x[n, c, h, w] box[c, c, 3, 3]: avg_pool_half(x) = conv_half(x, box)
average-of-each        x[n, c, h, w] boxes[c, 1, 3, 3]: avg_pool(x) = conv_depth(x, boxes)
half-average-of-each   x[n, c, h, w] boxes[c, 1, 3, 3]: avg_pool_half(x) = conv_half_depth(x, boxes)
joined-pools           boxes[c, 1, 3, 3] boxes2[d, 1, 3, 3] boxes3[c+d, 1, 3, 3]:
  concat_rows(boxes, boxes2) = boxes3
identity-high          dirac[c, c, r, s] dirac2[c, c, wide(r), s]: enlarge_high(dirac) = dirac2
identity-wide          dirac[c, c, r, s] dirac2[c, c, r, wide(s)]: enlarge_wide(dirac) = dirac2
identity-at-places     dirac[c, c, r, s]: mul(dirac, dirac) = dirac
enlarged-high-and-wide v[o, c, r, s]: enlarge(v) = enlarge_high(enlarge_wide(v))
enlarged-wide-and-high v[o, c, r, s]: enlarge(v) = enlarge_wide(enlarge_high(v))
times-full             x[n, c, h, w] full[n, c, h, w]: mul(x, full) = x
full-joined-rows       full[n, c, h, w] full2[m, c, h, w] full3[n+m, c, h, w]:
  concat_rows(full, full2) = full3
full-joined-cols       full[n, c, h, w] full2[n, d, h, w] full3[n, c+d, h, w]:
  concat_cols(full, full2) = full3
"""

# The parts of constants: of the identity they are an identity beside zeros.
_CONSTANTS = """
identity-rows-0        dirac3[c+d, c+d, r, s] dirac[c, c, r, s] blank[c, d, r, s]: split_rows(dirac3, c)[0] =
  concat_cols(dirac, blank)
identity-rows-1        dirac3[c+d, c+d, r, s] dirac[d, d, r, s] blank[d, c, r, s]: split_rows(dirac3, c)[1] =
  concat_cols(blank, dirac)
identity-cols-0        dirac3[c+d, c+d, r, s] dirac[c, c, r, s] blank[d, c, r, s]: split_cols(dirac3, c)[0] =
  concat_rows(dirac, blank)
identity-cols-1        dirac3[c+d, c+d, r, s] dirac[d, d, r, s] blank[c, d, r, s]: split_cols(dirac3, c)[1] =
  concat_rows(blank, dirac)
full-rows-0            full3[n+m, c, h, w] full[n, c, h, w]: split_rows(full3, n)[0] = full
full-rows-1            full3[n+m, c, h, w] full[m, c, h, w]: split_rows(full3, n)[1] = full
full-cols-0            full3[n, c+d, h, w] full[n, c, h, w]: split_cols(full3, c)[0] = full
full-cols-1            full3[n, c+d, h, w] full[n, d, h, w]: split_cols(full3, c)[1] = full
pools-0                boxes3[c+d, 1, 3, 3] boxes[c, 1, 3, 3]: split_rows(boxes3, c)[0] = boxes
pools-1                boxes3[c+d, 1, 3, 3] boxes[d, 1, 3, 3]: split_rows(boxes3, c)[1] = boxes
pools-squared          boxes[c, 1, 3, 3]: mul(add(boxes, add(boxes, boxes)), add(boxes, add(boxes, boxes))) =
  boxes
pools-as-factors       x[n, c, h, w] v[c, 1, 3, 3] u[c, 1, 3, 3] boxes[c, 1, 3, 3]:
  conv_depth(conv_depth(x, mul(v, boxes)), u) = conv_depth(conv_depth(x, v), mul(u, boxes))
plus-blank             x[n, c, h, w] blank[n, c, h, w]: add(x, blank) = x
times-blank            x[n, c, h, w] blank[n, c, h, w]: mul(x, blank) = blank
blank-scaled           t[] blank[n, c, h, w]: scale(t, blank) = blank
blank-joined-rows      blank[n, c, h, w] blank2[m, c, h, w] blank3[n+m, c, h, w]: concat_rows(blank, blank2) =
  blank3
blank-joined-cols      blank[n, c, h, w] blank2[n, d, h, w] blank3[n, c+d, h, w]: concat_cols(blank, blank2) =
  blank3
blank-rows-0           blank3[n+m, c, h, w] blank[n, c, h, w]: split_rows(blank3, n)[0] = blank
blank-rows-1           blank3[n+m, c, h, w] blank[m, c, h, w]: split_rows(blank3, n)[1] = blank
blank-cols-0           blank3[n, c+d, h, w] blank[n, c, h, w]: split_cols(blank3, c)[0] = blank
blank-cols-1           blank3[n, c+d, h, w] blank[n, d, h, w]: split_cols(blank3, c)[1] = blank
blank-average          blank[n, c, h, w]: avg_pool(blank) = blank
blank-largest          blank[n, c, h, w]: max_pool(blank) = blank
blank-enlarged         blank[o, c, r, s] blank2[o, c, wide(r), wide(s)]: enlarge(blank) = blank2
blank-high             blank[o, c, r, s] blank2[o, c, wide(r), s]: enlarge_high(blank) = blank2
blank-wide             blank[o, c, r, s] blank2[o, c, r, wide(s)]: enlarge_wide(blank) = blank2
blank-weights          x[n, c, h, w] blank[o, c, r, s] blank2[n, o, h, w]: conv_same(x, blank) = blank2
blank-image            blank[n, c, h, w] v[o, c, r, s] blank2[n, o, h, w]: conv_same(blank, v) = blank2
blank-groups           x[n, c+c, h, w] blank[o+o, c, r, s] blank2[n, o+o, h, w]:
  conv_groups(x, blank) = blank2
blank-image-in-groups  blank[n, c+c, h, w] v[o+o, c, r, s] blank2[n, o+o, h, w]:
  conv_groups(blank, v) = blank2
blank-depth            x[n, c, h, w] blank[c, 1, r, s] blank2[n, c, h, w]: conv_depth(x, blank) = blank2
blank-image-in-depth   blank[n, c, h, w] v[c, 1, r, s]: conv_depth(blank, v) = blank
"""

# A weight that is zero but on the diagonal of the identity multiplies each channel by a number.
_CHANNELS = """
channels-scaled        x[n, c, h, w] u[c, c, r, s] dirac[c, c, r, s] full[n, c, h, w]:
  conv_same(x, mul(u, dirac)) = mul(x, conv_same(full, mul(u, dirac)))
channels-of-product    a[c, c, r, s] b[c, c, r, s] dirac[c, c, r, s] full[n, c, h, w]:
  conv_same(full, mul(a, mul(b, dirac))) =
  mul(conv_same(full, mul(a, dirac)), conv_same(full, mul(b, dirac)))
channels-above-zero    u[c, c, r, s] dirac[c, c, r, s] full[n, c, h, w]:
  relu(conv_same(full, mul(u, dirac))) = conv_same(full, mul(relu(u), dirac))
channels-are-even      u[c, c, r, s] dirac[c, c, r, s] full[n, c, h, w]:
  max_pool(conv_same(full, mul(u, dirac))) = conv_same(full, mul(u, dirac))
channels-apart         x[n, c, h, w] u[c, c, r, s] dirac[c, c, r, s] v[c, 1, p, q]:
  conv_depth(conv_same(x, mul(u, dirac)), v) = conv_same(conv_depth(x, v), mul(u, dirac))
"""

_GROWING = """
largest-of-full        full[n, c, h, w]: max_pool(full) = full
largest-of-one-number  t[] full[n, c, h, w]: max_pool(scale(t, full)) = scale(t, full)
largest-beside-full    x[n, c, h, w] full[n, c, h, w]: max_pool(add(x, full)) = add(max_pool(x), full)
largest-beside-number  t[] x[n, c, h, w] full[n, c, h, w]: max_pool(add(x, scale(t, full))) =
  add(max_pool(x), scale(t, full))
largest-tripled        x[n, c, h, w]: max_pool(add(x, add(x, x))) =
  add(max_pool(x), add(max_pool(x), max_pool(x)))
largest-cube           x[n, c, h, w]: max_pool(mul(x, mul(x, x))) =
  mul(max_pool(x), mul(max_pool(x), max_pool(x)))
largest-with-relu      x[n, c, h, w]: max_pool(add(x, relu(x))) = add(max_pool(x), relu(max_pool(x)))
largest-times-relu     x[n, c, h, w]: max_pool(mul(x, relu(x))) = mul(max_pool(x), relu(max_pool(x)))
relu-times-largest     x[n, c, h, w]: mul(relu(x), relu(max_pool(x))) = mul(relu(x), max_pool(x))
high-and-wide          v[o, c, r, s]: enlarge_high(enlarge_wide(v)) = enlarge_wide(enlarge_high(v))
"""

_SHAPES = {
    "": "x[n, c, h, w] v[o, c, r, s]",
    "groups": "x[n, c+c, h, w] v[o+o, c, r, s]",
    "depth": "x[n, c, h, w] v[c, 1, r, s]",
}


def _lines() -> str:
    """Return the axioms of every kind of operator."""
    found = [_OTHERS, _CONSTANTS, _CHANNELS, _GROWING]
    found += [_AVERAGES.format(f=name) for name in ("avg_pool", "avg_pool_half")]
    found += [_LARGEST.format(f=name) for name in ("max_pool", "max_pool_half")]
    found += [_BORDERS.format(f=name) for name in ("enlarge", "enlarge_high", "enlarge_wide")]
    kinds = {"": _CONVOLUTIONS, "groups": _GROUPS, "depth": _DEPTH}
    for one in CONVOLUTIONS:
        f, shapes = one.plain, _SHAPES[one.groups]
        if one.relu:
            found.append(f"{one.name}-is-relu {shapes}: {one.name}(x, v) = relu({f}(x, v))\n")
            continue
        ungrouped = f.removesuffix(f"_{one.groups}") if one.groups else f
        found.append(kinds[one.groups].format(f=f, g="conv_same" if ungrouped == "conv" else ungrouped))
        if one.padding == "same":
            found += [
                f"{f}-{border} {shapes}: {f}(x, {border}(v)) = {f}(x, v)\n"
                for border in ("enlarge", "enlarge_high", "enlarge_wide")
            ]
    return "".join(text.lstrip("\n") for text in found)


IMAGES = _lines()
