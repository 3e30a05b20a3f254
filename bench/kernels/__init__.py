"""What `bench.cpu` and `bench.gpu` share: their cases, the rivals, the roofs, and the table."""
