"""Proof of rules: counterexamples in numbers, derivations from axioms, and z3 at small sizes."""
