"""Code generators: muGraphs become Triton or C++ source."""
