"""Lowering: which function turns a call of each ATen operator into algebra; `algebra.py` fills the table."""
