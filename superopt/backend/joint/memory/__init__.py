"""What a training step keeps between its passes, and what it makes again."""
