"""The language of rules: operators, shapes, expressions, and the numbers they are tried with."""
