"""Report: a result as one HTML page that needs nothing else."""

from superopt.report.page import report_html

__all__ = ["report_html"]
