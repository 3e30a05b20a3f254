"""How fast rules are discovered, and whether they cover those that TASO publishes."""
