"""What does this layout do to this run? Every array's part, the bytes, the words, the findings; and what changes."""

from meshtrain.run.show.difference import difference_text
from meshtrain.run.show.report import Report, as_json, default_devices, make_report
from meshtrain.run.show.text import picture_text, report_text

__all__ = [
    "Report", "as_json", "default_devices", "difference_text", "make_report", "picture_text", "report_text",
]  # fmt: skip
