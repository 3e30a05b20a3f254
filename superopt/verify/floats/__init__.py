"""Floats: results against float64, on inputs that show every comparison both ways."""
