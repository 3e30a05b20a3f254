"""The space of tensors on the way to a goal: explored, turned into derivations, and back into graphs."""
