"""Joint: what a training step gains where its forward and backward pass are seen as one graph."""
