"""A run, from its config to its last checkpoint. Reads from top to bottom."""

import contextlib
import time
from typing import Any

import jax
import numpy as np

import meshtrain
from meshtrain.errors import Exit, InputError
from meshtrain.io.checkpoint import Checkpoints
from meshtrain.io.checkpoint_folder import EVAL_LOSS
from meshtrain.io.loader import Batches
from meshtrain.layout.order import row_order
from meshtrain.model.flops import model_flops_per_token
from meshtrain.run import config as run_config
from meshtrain.run import origin, startup
from meshtrain.run.background import Background
from meshtrain.run.config import Request
from meshtrain.run.distributed import chose_cpu, describe_devices, set_up
from meshtrain.run.evaluation import Evaluation
from meshtrain.run.folder import RunFolder
from meshtrain.run.goodput import Goodput
from meshtrain.run.metrics import Metrics
from meshtrain.run.processes.devices import axes_by_host, check_devices
from meshtrain.run.processes.join import join
from meshtrain.run.progress import Progress, format_seconds
from meshtrain.run.report import Report, Work, peak_flops
from meshtrain.run.signals import StopRequest
from meshtrain.run.trace import Trace
from meshtrain.run.watch import COMPILE, DATA, END, EVALUATION, SAVE, STEP, Watchdog
from meshtrain.step import learning_rate, make_eval_step, state_specs
from meshtrain.step.state import make_device_order

COMPILING = 7200  # seconds that a process waits for the slowest to compile


def train(request: Request, stop: StopRequest) -> int:
    """Trains to the last step, or until a signal; returns the exit code. Errors as MeshtrainError.

    stop: what listens for the signals, since the start of the program.
    """
    progress = Progress(request.config.steps, request.config.log_every, quiet=not request.process.is_first)
    for warning in request.warnings:
        progress.say(f"warning: {warning}")
    watch = Watchdog(request.config.watch, request.process, progress.say)
    with contextlib.closing(watch), contextlib.ExitStack() as cleanup:
        cleanup.callback(progress.close)
        try:
            return watch.done(_train(request, progress, stop, watch, cleanup))
        except BaseException as error:
            watch.failed(error)  # does not come back where other processes wait for this one
            raise


def _train(
    request: Request, progress: Progress, stop: StopRequest, watch: Watchdog, cleanup: contextlib.ExitStack
) -> int:
    config, say, me, phases = request.config, progress.say, request.process, watch.phases

    # All processes of the run, or an error that names who is missing or starts something else.
    peers = join(me, run_config.asked(request), say)

    # The run's folder: nothing is done for a run that may not write there, or that is another run.
    folder = peers.agree("folder", lambda: cleanup.enter_context(RunFolder(config.workdir, writes=me.is_first)))
    peers.agree("folder", lambda: folder.refuse_other(run_config.mathematics(config), False))

    # From now on no process waits for ever, and none ends alone.
    watch.start(folder.path, peers.share("start", lambda: f"{time.time_ns():020d}"), stop.before_training)
    if me.count > 1:
        stop.share(peers, me.is_first)

    # The devices, and the layout on them.
    num_devices = set_up(request, say)
    hosts = check_devices(peers, chose_cpu(request), say)
    say(f"meshtrain {meshtrain.__version__}, jax {jax.__version__}, {describe_devices(num_devices)}")
    placement = startup.place_layout(request, num_devices, say)
    if me.count > 1:
        say(axes_by_host(placement.mesh, hosts))
    specs = state_specs(config.model, config.optimizer)
    say(f"model: {startup.num_parameters(specs):,} parameters, computing in {config.precision.compute}")
    startup.check_memory(config, placement)

    # Where does this start go on from?
    checkpoints = cleanup.enter_context(Checkpoints(folder.checkpoints, config.checkpoint, say, peers))
    watch.watch_saves(lambda: checkpoints.began)
    saved = checkpoints.newest()
    first = saved.step if saved else 0
    if me.is_first and (lack := checkpoints.lack_of_room(specs)) is not None:
        say(f"warning: {lack}")
    if saved and first >= config.steps and not saved.record.get("evaluation_cut"):
        say(f"nothing to do: {folder.path} is at step {first}; --config.steps above that goes on")
        return Exit.DONE

    # Data, compilation and the first state need each other not: the first two go on in threads of their own.
    data_work = Background("data", lambda: startup.open_data(config, progress, peers))
    step_work = Background("compilation", lambda: startup.compile_step(config, placement, progress))
    peers.agree("first state", lambda: None)  # the devices' first exchange waits 30 s for the slowest process, no more
    state = startup.first_state(config, specs, placement, saved, progress, peers)
    data = data_work.result()
    say(startup.describe_data(data, config))

    # Now that the content of the data is known: is this the run that the folder holds?
    mathematics = run_config.mathematics(config, data.contents)
    peers.agree("folder and data", lambda: folder.refuse_other(mathematics, True, first * config.global_batch))
    if folder.has_evaluated_on_others(data.held_out_contents):
        say("warning: the held-out data is not that of before: evaluations on record are no measure for those to come")
    asked = (
        run_config.as_json(config), request.layout, mathematics, first * config.global_batch, data.held_out_contents
    )  # fmt: skip
    peers.agree("folder and run", lambda: folder.describe(*asked))
    peers.share("files of the model", lambda: origin.carry(config.init, folder.path))
    order = row_order(placement, config.data.length)
    batches = cleanup.enter_context(
        Batches(
            data.train,
            placement,
            global_batch=config.global_batch,
            start_step=first,
            stop_step=config.steps,
            order=order,
            packed=config.data.packed,
        )
    )
    evaluate_batch = make_eval_step(startup.step_config(config), placement)
    reading = dict(global_batch=config.global_batch, order=order, packed=config.data.packed)
    evaluation = Evaluation(data.held_out, evaluate_batch, placement, config.eval_batches, reading)
    if config.checkpoint.keep_best and not evaluation:
        raise InputError("checkpoint.keep_best: the corpus has no held-out part; checkpoint.keep_best=None would work.")
    phases.enter(COMPILE)
    train_step = peers.agree("compilation", step_work.result, seconds=COMPILING)

    # The records: what lies beyond the first step is cut off, for it will be done again.
    goodput = Goodput(folder.path, first, me.is_first)
    if again := goodput.starts[-1].lost_steps:
        behind = f"step {first}" if saved else "the beginning, for there is no whole checkpoint"
        say(f"going on from {behind}: {again} steps that are on record are done again")
    metrics = cleanup.enter_context(
        contextlib.closing(Metrics(folder.path, first, say, config.tensorboard, me.is_first))
    )
    tokens = config.global_batch * config.data.length
    flops = tokens * model_flops_per_token(config.model, config.data.length)
    peak = config.peak_flops or peak_flops(jax.devices()[0])
    if peak is None:
        say(f"model FLOP/s utilisation: not available on {jax.devices()[0].device_kind}")
    work = Work(config.steps, tokens, flops, peak * num_devices if peak else None, config.max_skipped)
    report = Report(work, metrics, progress)
    trace = cleanup.enter_context(contextlib.closing(Trace(folder.profile, config.profile_steps, say)))
    step = saved_step = first
    cut = False  # whether a signal came in the middle of the evaluation of `step`
    eval_losses: dict[int, float] = {}  # of the newest evaluation, by its step
    model_order = make_device_order(specs, placement, back=True)  # a checkpoint knows nothing of stages

    def save() -> None:
        record = {
            "rows": step * config.global_batch,  # the position in the data
            "evaluation_cut": cut,
            EVAL_LOSS: eval_losses.get(step),
            "mathematics": mathematics,
            "layout": placement.layout.name,
            "mesh": placement.axis_sizes,
            "meshtrain": meshtrain.__version__,
            "jax": jax.__version__,
        }
        checkpoints.save(step, model_order(state), specs, record)

    def evaluate() -> bool:
        def stopped() -> bool:
            phases.enter(EVALUATION)  # anew for each batch
            return stop.now()

        report.flush()
        result = evaluation.run(step, state.params, stopped)
        phases.enter(STEP)
        if result is not None:
            metrics.write(result)
            eval_losses.clear()
            eval_losses[step] = result["eval_loss"]
            say(_evaluated(result))
        report.resume_clock()
        return result is not None

    # Training. A step is started before the values of the one before it are looked at. A step is evaluated before it
    # is saved, so that what lies before a checkpoint has been evaluated (unless a signal came in the middle).
    stop.begin()
    phases.enter(STEP)
    progress.start(first)
    is_due = first > 0 and bool(evaluation) and _is_due(config.eval_every, first, config.steps)
    if is_due and not peers.share("evaluated", lambda: metrics.has_evaluation(first)):
        cut = not evaluate()
    begun = time.perf_counter()
    report.resume_clock()
    while step < config.steps and not stop.now():
        top, waited = time.perf_counter(), batches.seconds_waited
        phases.enter(DATA)
        batch = next(batches)
        phases.enter(STEP)
        rate = learning_rate(config.optimizer.learning_rate, config.optimizer.schedule, step, config.steps)
        trace.before(step + 1, report.flush)
        state, values = train_step(state, batch, np.float32(rate))
        step += 1
        watch.step(step, time.perf_counter() - top, batches.seconds_waited - waited)
        report.step(step, rate, batches.seconds_waited - waited, values)
        goodput.note(step, phases.totals())
        trace.after(step, report.flush)
        if evaluation and _is_due(config.eval_every, step, config.steps):
            cut = not evaluate()
        if step % config.checkpoint.every == 0 and step < config.steps:
            report.flush()  # the state is there when its step is done
            with phases.during(SAVE):
                save()
            saved_step = step
            report.resume_clock()
        checkpoints.check()
    report.flush()
    phases.enter(END)
    progress.close()

    # The last step is always saved, also the one that a signal made the last.
    if step > saved_step:
        with progress.phase(f"saving step {step}"):
            save()
            checkpoints.wait()
    checkpoints.wait()
    peers.agree("end", lambda: None)  # so that nobody goes while another still needs it
    goodput.note(step, phases.totals(), done=step == config.steps and not cut, force=True)
    say(goodput.text())
    if step < config.steps or cut:
        where = f"step {step} of {config.steps}{', before its evaluation was done' if cut else ''}"
        say(f"{stop.name}: stopped after {where}, which is saved; the same command goes on")
        return Exit.PREEMPTED
    seconds = format_seconds(time.perf_counter() - begun)
    loss = f", loss {report.last['loss']:.4f}" if report.last else ""
    say(f"done: step {step} of {config.steps}{loss}, {seconds} of training; everything is in {folder.path}")
    return Exit.DONE


def _is_due(every: int, step: int, num_steps: int) -> bool:
    return step == num_steps or (every > 0 and step % every == 0)


def _evaluated(result: dict[str, Any]) -> str:
    bits = result["eval_bits_per_byte"]
    per_byte = f", {bits:.3f} bits per byte" if bits is not None else ""
    return (
        f"held-out loss after step {result['step']}: {result['eval_loss']:.4f}{per_byte}"
        f" ({result['eval_tokens']:,} tokens, {result['eval_seconds']:.1f} s)"
    )
