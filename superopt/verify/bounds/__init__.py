"""Bounds: how likely one random trial calls two different graphs equal."""
