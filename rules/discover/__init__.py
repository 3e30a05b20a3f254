"""Rule discovery: all small graphs of tensor operators, which of them are equal, and which rules that makes."""
