"""Search for rules: all small graphs, which of them are equal, and which equalities follow from others."""
