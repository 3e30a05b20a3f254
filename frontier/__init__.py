"""Level-synchronous search over fixed-width integer rows: one engine, many spaces."""

from superopt.frontier.engine import explore
from superopt.frontier.space import Exploration, Keys, LevelStats, Limits, Rows, Space

__all__ = ["Exploration", "Keys", "LevelStats", "Limits", "Rows", "Space", "explore"]
