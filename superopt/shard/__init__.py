"""Shard: placements, collectives and sharded programs for machines of several devices."""
