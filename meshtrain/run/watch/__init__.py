"""Does the run still move, do all of its processes live, where does its time go, and how does it end if not?"""

from meshtrain.run.watch.budget import COMPILE, DATA, END, EVALUATION, SAVE, START, STEP, WatchConfig
from meshtrain.run.watch.watchdog import Watchdog

__all__ = ["COMPILE", "DATA", "END", "EVALUATION", "SAVE", "START", "STEP", "WatchConfig", "Watchdog"]
