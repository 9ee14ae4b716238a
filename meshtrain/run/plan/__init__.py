"""What will a run cost on a cluster, and which layout is best? Memory, time, traffic; search; serving. No device."""

from meshtrain.run.plan.report import PlanReport, as_json, make_plan_report
from meshtrain.run.plan.text import plan_text

__all__ = ["PlanReport", "as_json", "make_plan_report", "plan_text"]
