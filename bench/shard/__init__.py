"""Reductions on processes whose links are throttled: synthesized programs against one all-reduce."""
