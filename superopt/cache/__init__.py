"""The cache: searches, plans, measurements and pending work, in one file of the user's cache folder.

    with Cache.open() as cache:
        key = key_of("plan", program=program_text(graph), device=device, options=options, **versions())
        record = cache.get(key)
        if record is None:
            record = Record({"plans": [...]}, label=graph.name)
            cache.put(key, record)

Data only: JSON, never code. No fault of the file system stops the work.
"""

from superopt.cache.cache import Cache, Info, close_all
from superopt.cache.keys import KINDS, PARTS, Key, Kind, key_of, program_text, versions
from superopt.cache.place import cache_folder, locked_file
from superopt.cache.records import Entry, Record

__all__ = [
    "KINDS",
    "PARTS",
    "Cache",
    "Entry",
    "Info",
    "Key",
    "Kind",
    "Record",
    "cache_folder",
    "close_all",
    "key_of",
    "locked_file",
    "program_text",
    "versions",
]
