"""The suite of a user's own functions: how they are declared, and how one process measures them."""
