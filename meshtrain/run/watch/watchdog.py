"""The watchdog: a thread that ends this process, with a reason and an exit code, when the run does not move any more.

It looks at the clock while the main thread may hang anywhere, in a collective as well as in a write. Files are read and
written by a second thread, so that a folder that hangs does not stop the first one. All processes end with one verdict.
"""

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from meshtrain.errors import Exit, MeshtrainError, PeerError, first_line
from meshtrain.run.processes import ThisProcess
from meshtrain.run.watch.abort import on_abort
from meshtrain.run.watch.budget import END, START, STEP, Budgets, WatchConfig
from meshtrain.run.watch.heartbeat import Beat, Pulse, Signs, Verdict, machine
from meshtrain.run.watch.phases import Phases
from meshtrain.run.watch.stragglers import Stragglers

BEHIND = "save in the background"


class Watchdog:
    """Of one process. `phases`: what its main thread is doing."""

    def __init__(self, config: WatchConfig, me: ThisProcess, say: Callable[[str], None] = print) -> None:
        self._config, self._me, self._say = config, me, say
        self.phases = Phases(START, Budgets(config))
        self._step = 0
        self._saving: Callable[[], float | None] = lambda: None  # since when a save goes on in the background
        self._each_round: Callable[[], str | None] = lambda: None
        self._signs: Signs | None = None
        self._pulse: Pulse | None = None
        self._verdict: Verdict | None = None
        self._lost: list[str] = []
        self._suspicious = self._aborting = False
        self._code: int | None = None  # what this process ends with, once all is done
        self._beats = self._steps = 0
        self._host_seconds = self._data_seconds = 0.0
        self._lock, self._stop, self._looked = threading.Lock(), threading.Event(), threading.Event()

    def start(self, folder: Path, name: str, each_round: Callable[[], str | None]) -> None:
        """Begins to watch. name: of this start, the same on all processes.

        each_round: asked at every interval; a text is the reason to end at once, before anything was trained.
        """
        self._each_round = each_round
        if not self._config.enabled:
            return
        self._signs = Signs(folder, name)
        if self._me.is_first:
            self._signs.forget_old()
        self._pulse = Pulse(self._signs, self._me.index, self._me.count, self._config.lost)
        self._signs.reserve(self._me.index)
        self._signs.write(self._beat())
        if self._me.count > 1:
            on_abort(self._hear_abort)
        for work in (self._tell, self._watch):
            threading.Thread(target=work, name="watchdog", daemon=True).start()

    def done(self, code: int) -> int:
        """All is done, here and on the other processes, and `code` is how this one ends; returns it.

        Whatever happens from now on (the others are going, and may take the runtime's service away) changes nothing.
        """
        self.phases.enter(END)
        self._code = code
        if self._signs is not None:
            self._signs.write(self._beat())
        return code

    def close(self) -> None:
        """Nothing is watched any more."""
        self._stop.set()

    def watch_saves(self, began: Callable[[], float | None]) -> None:
        """began: since when (time.monotonic) a save is being written, or None."""
        self._saving = began

    def step(self, step: int, host_seconds: float, data_seconds: float) -> None:
        """Step `step` was started after this process had worked on its host for so long, waiting for data included."""
        self._step = step
        self._steps, self._host_seconds = self._steps + 1, self._host_seconds + host_seconds
        self._data_seconds += data_seconds

    def failed(self, error: BaseException) -> None:
        """The main thread has an error, and other processes wait for it: they are told, and all end alike, at once.

        An error that is not this program's own may be the loss of another process, as the network saw it: then that is
        the reason. With one process nobody need be told.
        """
        if self._me.count == 1 or self._signs is None:
            return
        if isinstance(error, MeshtrainError) and not isinstance(error, PeerError):
            self._end(Verdict(error.exit_code, str(error), self._me.index), stacks=False)
        if not isinstance(error, Exception):
            self._end(Verdict(Exit.INTERRUPTED, "stopped at once, unsaved", self._me.index), stacks=False)
        self._suspicious = True
        self.phases.enter(f"error ({type(error).__name__})")
        time.sleep(self._config.lost + 3 * self._config.interval)  # ended when it is known who is lost
        if isinstance(error, PeerError):
            self._end(Verdict(error.exit_code, str(error), self._me.index), stacks=False)
        traceback.print_exception(error)
        reason = f"{type(error).__name__}: {first_line(error)}"
        self._end(Verdict(Exit.FAULT, reason, self._me.index), stacks=False)

    def _hear_abort(self) -> None:
        if self._code is not None:
            os._exit(self._code)
        self._aborting = self._suspicious = True

    def _beat(self) -> Beat:
        with self._lock:
            self._beats += 1
            phase, begun = self.phases.now
            return Beat(
                process=self._me.index, beat=self._beats, step=self._step, phase=phase,
                seconds=time.monotonic() - begun, host=self._me.host, machine=machine(), pid=os.getpid(),
                steps=self._steps, host_seconds=self._host_seconds, data_seconds=self._data_seconds,
                over=self._code is not None,
            )  # fmt: skip

    def _tell(self) -> None:
        """The thread of the files: tells where this process is, and reads what the others tell."""
        assert self._signs is not None
        assert self._pulse is not None
        interval, stragglers = self._config.interval, Stragglers(self._config.report)
        while not self._stop.wait(interval):
            mine = self._beat()
            self._signs.write(mine)
            if self._verdict is None:
                self._verdict = self._signs.verdict()
            if self._me.count > 1:
                self._lost = self._pulse.look(self._me.is_first or self._suspicious, interval)
            if self._me.is_first and (slow := stragglers.look([mine, *self._pulse.last.values()])) is not None:
                self._say(slow)
            if (reason := self._each_round()) is not None:
                self._verdict = self._signs.publish(Verdict(Exit.PREEMPTED, reason, self._me.index))
            self._looked.set()

    def _watch(self) -> None:
        """The thread of the clock."""
        aborted: float | None = None
        saving: float | None = None
        idle = 0.0  # seconds of that save for which the whole process was stopped
        before = time.monotonic()
        while not self._stop.wait(self._config.interval):
            now = time.monotonic()
            if now - before > 3 * self._config.interval + 5:
                self.phases.pause(now - before)  # the whole process was stopped and goes on: nothing hung meanwhile
                idle += now - before
            before = now
            if self._verdict is not None:
                self._end(self._verdict, stacks=self._verdict.code in (Exit.HANG, Exit.PEER_LOST))
            if self._lost:
                text = "lost " + "; ".join(self._lost)
                self._end(Verdict(Exit.PEER_LOST, text, self._me.index), stacks=True)
            if self._aborting:
                aborted = aborted or now
                if now - aborted > self._config.lost + 2 * self._config.interval:
                    self._end(Verdict(Exit.FAULT, "the runtime aborted this process", self._me.index), stacks=True)
            saved, saving = saving, self._saving()
            if saving != saved:
                if saved is not None:
                    self.phases.budgets.learn(BEHIND, now - saved - idle)
                idle = 0.0
            for phase, begun in (self.phases.now, (BEHIND, saving and saving + idle)):
                if begun is not None and now - begun > self.phases.budgets.seconds(phase) and not self._suspicious:
                    self._end(self._hang(phase, now - begun), stacks=True)

    def _hang(self, phase: str, seconds: float) -> Verdict:
        """What is said of a phase that takes too long: where everybody is, those behind first."""
        usual = self.phases.budgets.usual(phase)
        text = f"no progress: {phase} for {seconds:.0f} s, {self._beat().where}"
        text += f" (usually {usual:.2f} s)" if usual is not None else ""
        if self._me.count > 1:
            self._suspicious = True
            self._looked.clear()
            self._looked.wait(3 * self._config.interval)
            if self._lost:
                return Verdict(Exit.PEER_LOST, "lost " + "; ".join(self._lost), self._me.index)
            text += self._behind()
        return Verdict(Exit.HANG, text, self._me.index)

    def _behind(self) -> str:
        """The processes that the others wait for: at an older step, or not in the collectives of a step at all."""
        beats = [*(self._pulse.last.values() if self._pulse is not None else ()), self._beat()]
        newest = max(beat.step for beat in beats)
        behind = [beat for beat in beats if beat.step < newest]
        behind = behind or [beat for beat in beats if beat.phase != STEP]
        if not behind or len(behind) == len(beats):
            return "; all processes are at the same place"
        return "; behind: " + "; ".join(beat.where for beat in sorted(behind, key=lambda beat: beat.step))

    def _end(self, verdict: Verdict, stacks: bool) -> NoReturn:
        """Publishes the verdict, or bows to the one that there is; says it; ends this process."""
        threading.Timer(5 * self._config.interval + 10, os._exit, (verdict.code,)).start()  # if even this hangs
        if self._signs is not None:
            verdict = self._signs.publish(verdict)
        with suppress(OSError):
            if stacks:
                self._dump_stacks()
            whose = f" (process {verdict.process})" if self._me.count > 1 else ""
            print(f"\nerror: {verdict.text}{whose}", file=sys.stderr, flush=True)
            sys.stdout.flush()
        if self._me.count > 1:
            time.sleep(2 * self._config.interval + (1 if self._me.is_first else 0))  # so that the others can read it
        os._exit(verdict.code)

    def _dump_stacks(self) -> None:
        """Of all threads, on standard error and in the run's folder."""
        print(f"\nstacks of {self._beat().where}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        if self._signs is not None:
            with open(self._signs.stacks(self._me.index), "w") as file:
                file.write(f"{self._beat().where}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
