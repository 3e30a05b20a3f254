"""Random programs: grown, made equal by laws or different by a mistake, and judged in float64."""
