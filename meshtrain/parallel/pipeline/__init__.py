"""Which stage runs what, and when? A schedule is a table of ops; one scan over its ticks runs them."""

from meshtrain.parallel.pipeline.picture import gantt, summary
from meshtrain.parallel.pipeline.plan import Plan, make_plan
from meshtrain.parallel.pipeline.schedule import SCHEDULES, schedule
from meshtrain.parallel.pipeline.table import Table, check_table
from meshtrain.parallel.pipeline.table_file import read_table, write_table
from meshtrain.parallel.pipeline.timing import Costs, ideal_idle, lock_step, lock_step_idle

__all__ = [
    "SCHEDULES", "Costs", "Plan", "Table", "check_table", "gantt", "ideal_idle", "lock_step", "lock_step_idle",
    "make_plan", "read_table", "schedule", "summary", "write_table",
]  # fmt: skip
