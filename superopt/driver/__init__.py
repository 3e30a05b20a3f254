"""The driver: one call from a function to all its equivalent graphs, region by region."""

from superopt.driver.found import (
    Found,
    Progress,
    RegionSearch,
    Search,
    SearchOptions,
    SearchStatistics,
)
from superopt.driver.run import search

__all__ = [
    "Found",
    "Progress",
    "RegionSearch",
    "Search",
    "SearchOptions",
    "SearchStatistics",
    "search",
]
