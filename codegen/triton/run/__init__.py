"""Runs and compiles printed kernels: calls of a muGraph on tensors, and reports for a device not here."""
