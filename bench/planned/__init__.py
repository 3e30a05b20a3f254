"""Cases of `bench.gpu`, whose candidates come from plans: loaded, compiled, checked, raced, profiled."""
