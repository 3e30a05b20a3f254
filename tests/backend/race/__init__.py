"""The race of regions: which pieces race, against what, and for how long."""
