"""Equality of tensor programs: exact algebra over finite fields, then floats; two independent parts."""
