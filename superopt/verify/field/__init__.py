"""The field: scalar arithmetic over a tower of prime fields, and all that is drawn in it."""
