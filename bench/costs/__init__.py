"""Costs: how well the cost model orders what it predicts, measured against the clock.

`programs` are the programs by family, `measure` compiles and times many ways to run each of them, and
`score` compares the order of the times with the order of the predictions.
"""
