"""Verdicts under attack: pairs of programs whose truth is known, and what the verifier says of them.

`pairs` has the form of a pair and its inputs, `judge` decides the truth by running both programs in
float64. The pairs come from `idioms` (what users would ask about, and near misses), from `equations`
(what graph rewriters publish) and from `programs` (random ones, with laws and mutations).
"""
