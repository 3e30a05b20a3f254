"""Windows in C++: what sums over them, and what multiplies them."""
