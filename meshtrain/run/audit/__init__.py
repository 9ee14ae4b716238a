"""Did the compiler do as told? A run's step compiled for a cluster, as data and as text."""

from meshtrain.run.audit.report import AuditReport, as_json, make_audit_report
from meshtrain.run.audit.text import audit_text

__all__ = ["AuditReport", "as_json", "audit_text", "make_audit_report"]
