"""Chunks: a region computed for a part of one axis at a time, so that its largest values are never whole."""
