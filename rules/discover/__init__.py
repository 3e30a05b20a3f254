"""Rule discovery: all small graphs of operators, which of them are equal, and the rules that this makes."""
