"""Axioms of tensor algebra, saturation of a goal under them, proofs that they hold, and discovered rules."""
