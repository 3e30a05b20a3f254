"""What all suites share: the command line, the form of results, times in blocks, and their comparison."""
