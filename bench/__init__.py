"""Benchmarks: each module measures one thing and writes its results, with what they depend on."""
