"""Level-synchronous search over fixed-width integer rows: one engine for any space and any transport."""

from superopt.frontier.engine.interface import Exploration, Keys, LevelStats, Limits, Rows, Space
from superopt.frontier.engine.search import explore

__all__ = ["Exploration", "Keys", "LevelStats", "Limits", "Rows", "Space", "explore"]
