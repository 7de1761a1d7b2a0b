"""The report of a run: a history and the checker's verdict as one HTML file, and in some lines for a terminal.

A history may be larger than memory, so it is read twice and never kept: `data.py` counts, and then chooses what is
drawn and picks the operations of those timelines; `drawing.py` says where everything is and writes it as SVG;
`report.py` puts the page together.
"""

from fencepost.testing.torture.report.report import write_report

__all__ = ["write_report"]
