"""Programs: whether two traced programs are equal, piece by piece, around the calls that are no algebra."""
