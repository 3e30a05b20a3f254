"""An optimized program among changes of what its function reads and of who calls it."""
