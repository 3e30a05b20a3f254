"""The axioms of windows: what a window of a term is, where the term is computed from others.

A window w of a term t is t at another place, and 0 where that place lies outside: at each of its positions it
is `inside * t[read := place]`, where the place is a sum of positions. All other axes stay as they are, so
that a term may have axes that its window makes as well, and is read there at the same position. In this
sense every term has a window, also one that lacks what the window reads.

From these few the forms of a convolution follow: `sum[r, s](window(x) * w)` summed over channels first is a
product of matrices, and after it a sum of shifted results (the offset form); a pool of a convolution with one
tap is that convolution of a pool. What holds of the numbers of places alone is no axiom but a rule of some
windows of one goal (`derivations`), which is decided by comparing whole tables of what is read.

An axiom that would be false without its guard has it as a field; `superopt rules check` proves each. There is
none of a reciprocal: outside, where the left side is 0, the right side would not be defined.
"""

from superopt.rules.axioms import Axiom

__all__ = ["WINDOW_AXIOMS"]

_NARROW = "a product that has what a window reads and what it makes would be larger than both"

_MOVED = "a window of what it does not move is that, or 0 outside: it helps no kernel"

WINDOW_AXIOMS = (
    Axiom(
        "window-of-add",
        "(Window w (Add a b))",
        "(Add (Window w a) (Window w b))",
        moved=("w", "a", "b"),
        note=_MOVED,
    ),
    Axiom("window-of-neg", "(Window w (Neg a))", "(Neg (Window w a))"),
    Axiom(
        "window-of-product",
        "(Window w (Mul a b))",
        "(Mul (Window w a) (Window w b))",
        moved=("w", "a", "b"),
        note=_MOVED,
    ),
    Axiom(
        "factor-leaves-window",
        "(Window w (Mul a b))",
        "(Mul (Window w a) b)",
        oneway=True,
        lacks=("b", "w"),
    ),
    Axiom(
        "factor-enters-window",
        "(Mul (Window w a) b)",
        "(Window w (Mul a b))",
        oneway=True,
        lacks=("b", "w"),
        narrow=("b", "w"),
        note=_NARROW,
    ),
    Axiom("window-of-sum", "(Window w (Sum k a))", "(Sum k (Window w a))", apart=("k", "w")),
    Axiom("window-of-max", "(Window w (Max k a))", "(Max k (Window w a))", apart=("k", "w")),
    Axiom(
        "window-of-maximum",
        "(Window w (Maximum a b))",
        "(Maximum (Window w a) (Window w b))",
        moved=("w", "a", "b"),
        note=_MOVED,
    ),
    Axiom("window-of-relu", "(Window w (Maximum a (Const 0)))", "(Maximum (Window w a) (Const 0))"),
    Axiom("window-of-sqrt", "(Window w (Sqrt a))", "(Sqrt (Window w a))"),
    Axiom("window-of-function", "(Window w (Call1 f a))", "(Call1 f (Window w a))", keeps_zero="f"),
    Axiom(
        "window-of-gate",
        "(Window w (Mul a (Inv (Add (Const 1) (Exp b)))))",
        "(Mul (Window w a) (Inv (Add (Const 1) (Exp (Window w b)))))",
        oneway=True,
        note="the gate is never 0 or infinite; outside it is multiplied by 0",
    ),
    Axiom("window-of-zero", "(Window w (Const 0))", "(Const 0)", shrinks=True),
    Axiom(
        "windows-commute", "(Window v (Window w a))", "(Window w (Window v a))", oneway=True, apart=("v", "w")
    ),
)
"""All axioms of windows."""
