"""What will a run cost on a cluster, and which layout is best? Memory, time, traffic; search; serving. No device."""

from meshtrain.run.plan.answer import Answer, answer
from meshtrain.run.plan.report import PlanReport, make_plan_report
from meshtrain.run.plan.search import search_layout
from meshtrain.run.plan.text import plan_text

__all__ = ["Answer", "PlanReport", "answer", "make_plan_report", "plan_text", "search_layout"]
