"""Output: a sharded program as a module that runs, in DTensor's words, and as a page."""
