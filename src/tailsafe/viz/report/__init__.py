"""A report on runs and studies: one HTML page that needs nothing but itself."""

from tailsafe.viz.report.page import Report, make_page, read_report

__all__ = ["Report", "make_page", "read_report"]
