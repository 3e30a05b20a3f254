"""Result: what came of optimizing a function, as frozen data; its one reader and writer; and it in words."""

from superopt.result.codec import read_result, result_from_json, result_json
from superopt.result.result import Result

__all__ = ["Result", "read_result", "result_from_json", "result_json"]
