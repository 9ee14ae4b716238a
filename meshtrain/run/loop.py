"""A run, from its config to its last checkpoint. Reads from top to bottom."""

import time
from typing import Any

import jax
import numpy as np

import meshtrain
from meshtrain.io.checkpoint import Checkpoints
from meshtrain.io.loader import Batches
from meshtrain.model.flops import model_flops_per_token
from meshtrain.run import config as run_config
from meshtrain.run import startup
from meshtrain.run.background import Background
from meshtrain.run.config import Request
from meshtrain.run.distributed import describe_devices, set_up
from meshtrain.run.evaluation import Evaluation
from meshtrain.run.folder import RunFolder
from meshtrain.run.metrics import Metrics
from meshtrain.run.metrics import read as read_metrics
from meshtrain.run.progress import Progress, format_seconds
from meshtrain.run.report import Report, Work, peak_flops
from meshtrain.run.signals import PREEMPTED, Stopped, StopRequest
from meshtrain.run.trace import Trace
from meshtrain.step import learning_rate, make_eval_step, state_specs


def train(request: Request) -> int:
    """Trains to the last step, or until a signal; returns the exit code. Errors as MeshtrainError."""
    progress = Progress(request.config.steps, request.config.log_every)
    for warning in request.warnings:
        progress.say(f"warning: {warning}")
    with StopRequest() as stop:
        try:
            return _train(request, progress, stop)
        except Stopped:
            progress.say(f"{stop.name} before training began: nothing to save")
            return PREEMPTED
        finally:
            progress.close()


def _train(request: Request, progress: Progress, stop: StopRequest) -> int:
    config, say = request.config, progress.say

    # The run's folder: nothing is done for a run that may not write there, or that is another run.
    folder = RunFolder(config.workdir)
    folder.refuse_other(run_config.mathematics(config), with_contents=False)

    # The devices, and the layout on them.
    num_devices = set_up(request, say)
    say(f"meshtrain {meshtrain.__version__}, jax {jax.__version__}, {describe_devices(num_devices)}")
    placement = startup.place_layout(request, num_devices, say)
    specs = state_specs(config.model, config.optimizer)
    say(f"model: {startup.num_parameters(specs):,} parameters, computing in {config.precision.compute}")

    # Data, compilation and the first state need each other not: the first two go on in threads of their own.
    data_work = Background("data", lambda: startup.open_data(config, progress))
    step_work = Background("compilation", lambda: _compile(request, specs, placement, progress))
    checkpoints = Checkpoints(folder.checkpoints, config.checkpoint, say)
    saved = checkpoints.newest()
    first = saved.step if saved else 0
    state = startup.first_state(config, specs, placement, saved, progress)
    data = data_work.result()

    # Now that the content of the data is known: is this the run that the folder holds?
    mathematics = run_config.mathematics(config, data.contents)
    folder.refuse_other(mathematics, with_contents=True)
    folder.describe(run_config.as_json(config), request.layout, mathematics)
    batches = Batches(data.train, placement, global_batch=config.global_batch, start_step=first, stop_step=config.steps)
    evaluation = Evaluation(
        data.held_out, make_eval_step(startup.step_config(config), placement), placement, config.global_batch,
        config.eval_batches,
    )  # fmt: skip
    train_step = step_work.result()

    # The records: what lies beyond the first step is cut off, it will be done again.
    metrics = Metrics(folder.path, first, say, config.tensorboard)
    tokens = config.global_batch * config.data.length
    peak = config.peak_flops or peak_flops(jax.devices()[0])
    if peak is None:
        say(f"model FLOP/s utilisation: not available on {jax.devices()[0].device_kind}")
    report = Report(
        Work(
            num_steps=config.steps,
            tokens=tokens,
            flops=tokens * model_flops_per_token(config.model, config.data.length),
            peak=peak * num_devices if peak else None,
            max_skipped=config.max_skipped,
        ),
        metrics,
        progress,
    )
    trace = Trace(folder.profile, config.profile_steps, say)

    def record() -> dict[str, Any]:
        """What is stored beside the arrays."""
        return {
            "rows": step * config.global_batch,
            "mathematics": mathematics,
            "layout": placement.layout.name,
            "mesh": placement.axis_sizes,
            "meshtrain": meshtrain.__version__,
            "jax": jax.__version__,
        }

    def evaluate() -> None:
        report.flush()
        result = evaluation.run(step, state.params, lambda: stop.name is not None)
        if result is not None:
            metrics.write(result)
            say(_evaluated(result))
        report.resume_clock()

    # Training. A step is started before the values of the one before it are looked at.
    step = saved_step = first
    begun = time.perf_counter()
    stop.training = True
    progress.start(first)
    if first and _is_due(config.eval_every, first, config.steps) and not _was_evaluated(metrics, first) and evaluation:
        evaluate()
    report.resume_clock()
    try:
        while step < config.steps and stop.name is None:
            waited = batches.seconds_waited
            batch = next(batches)
            rate = learning_rate(config.optimizer.learning_rate, config.optimizer.schedule, step, config.steps)
            trace.before(step + 1, report.flush)
            state, values = train_step(state, batch, np.float32(rate))
            step += 1
            report.step(step, rate, batches.seconds_waited - waited, values)
            trace.after(step, report.flush)
            if evaluation and _is_due(config.eval_every, step, config.steps):
                evaluate()
            if step % config.checkpoint.every == 0 and step < config.steps:
                checkpoints.save(step, state, specs, record())
                saved_step = step
            checkpoints.check()
        report.flush()
    finally:
        batches.close()
        trace.close()
        metrics.close()

    # The last step is always saved, however the run ends.
    if step > saved_step:
        with progress.phase(f"saving step {step}"):
            checkpoints.save(step, state, specs, record())
            checkpoints.close()
    checkpoints.close()
    folder.close()
    if stop.name is not None and step < config.steps:
        say(f"{stop.name}: stopped after step {step} of {config.steps}, which is saved; the same command goes on")
        return PREEMPTED
    seconds = format_seconds(time.perf_counter() - begun)
    loss = f", loss {report.last['loss']:.4f}" if report.last else ""
    say(f"done: step {step} of {config.steps}{loss}, {seconds} of training; everything is in {folder.path}")
    return 0


def _compile(request: Request, specs: Any, placement: Any, progress: Progress) -> Any:
    with progress.phase("compiling the training step"):
        return startup.compile_step(request.config, specs, placement)


def _is_due(every: int, step: int, num_steps: int) -> bool:
    return step == num_steps or (every > 0 and step % every == 0)


def _was_evaluated(metrics: Metrics, step: int) -> bool:
    return any(record["step"] == step and "eval_loss" in record for record in read_metrics(metrics.path))


def _evaluated(result: dict[str, Any]) -> str:
    bits = result["eval_bits_per_byte"]
    per_byte = f", {bits:.3f} bits per byte" if bits is not None else ""
    return (
        f"held-out loss after step {result['step']}: {result['eval_loss']:.4f}{per_byte}"
        f" ({result['eval_tokens']:,} tokens, {result['eval_seconds']:.1f} s)"
    )
