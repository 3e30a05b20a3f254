"""Verdicts under attack: pairs of programs whose truth is known, and what the verifier says of them.

`pairs` has the form of a pair and its inputs, `judge` decides the truth by running both programs in
float64. The pairs are idioms (what users would ask about, and near misses), whose families stand in
`numbers` and `tensors`; the equations that graph rewriters publish, in `tensors`; and random programs with
laws and mutations, in `programs`.
"""
