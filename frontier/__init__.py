"""Search: a generic level-synchronous engine, and beside it the spaces that it explores."""
