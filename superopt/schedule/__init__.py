"""Schedules: the ways in which a graph may run as kernels, ranked by their estimated times.

    found = schedules(graph, device_of("h200"))
    for one in found.kept:
        print(one.name, one.estimate.us)

`rank` does the same for several equal graphs and keeps the best schedules of all.
"""

from superopt.schedule.recipe import Recipe
from superopt.schedule.room import Room
from superopt.schedule.search import Dropped, FoundGraph, Scheduled, Schedules, explored, rank, schedules

__all__ = [
    "Dropped",
    "FoundGraph",
    "Recipe",
    "Room",
    "Scheduled",
    "Schedules",
    "explored",
    "rank",
    "schedules",
]
