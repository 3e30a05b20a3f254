"""Axioms of tensor algebra, saturation of a goal under them, and the proofs that they hold."""
