"""The report of a run: a history and the checker's verdict as one HTML file, and in some lines for a terminal.

A history may be larger than memory, so it is read twice and never kept: `survey.py` counts; `choice.py` then chooses
what is drawn; `look.py` picks the operations of those timelines (`excerpt.py`) and counts all of them into the
overview. `layout.py` says where everything is (`scale.py`, `rows.py`, `holds.py`), `timeline.py` and `heat.py` write it
as SVG, `page.py` puts the page together.
"""

from fencepost.testing.torture.report.report import write_report

__all__ = ["write_report"]
