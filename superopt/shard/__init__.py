"""Shard: placements, collectives and sharded programs for machines of several devices."""

from superopt.shard.api import PlacedReduction, ShardResult, place_reduction, shard_program

__all__ = ["PlacedReduction", "ShardResult", "place_reduction", "shard_program"]
