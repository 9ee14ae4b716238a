"""All arrays of a run by class, from the model and the step themselves: their specs, and a trace for the activations.

Nothing is allocated and no device is touched, so the size of the model and of the mesh does not matter.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.cost.state import weights_of
from meshtrain.errors import InputError
from meshtrain.io.rows import FIELDS
from meshtrain.layout import ArraySpec, Finding, Placement, Rules, Tree, abstract_mesh, map_specs
from meshtrain.layout.check import check
from meshtrain.layout.finding import ERROR
from meshtrain.layout.inventory import Inventory, Named
from meshtrain.layout.padding import physical_specs
from meshtrain.layout.sites import RecordingPlacement
from meshtrain.model import describe, loss_sums
from meshtrain.step import StepConfig, make_train_step, state_specs


def inventory(config: StepConfig, global_batch: int, length: int, place: Placement) -> Inventory:
    """Every array of a run's step. Activations are those of one microbatch, traced on one device without rules."""
    weights = weights_of(config, place.layout.accumulate)
    return Inventory(
        params=weights.params,
        grads=weights.grads,
        optimizer=weights.optimizer,
        activations=_activations(config, max(global_batch // place.num_microbatches, 1), length, place),
        batch=tuple((f"batch/{name}", spec) for name, spec in batch_specs(global_batch, length)),
    )


def batch_specs(global_batch: int, length: int) -> Named:
    """The arrays of a batch as the loader places them."""
    rows = ArraySpec((global_batch, length), np.dtype(np.int32), ("batch", "length"))
    index = ArraySpec((global_batch,), np.dtype(np.uint32), ("batch",))
    return (*((name, rows) for name in FIELDS), ("index_B", index))


def check_run(
    config: StepConfig, global_batch: int, length: int, place: Placement, fast_devices: int | None = None
) -> tuple[Inventory, list[Finding]]:
    """All arrays, and all findings on them. Where every array fits, the step is also traced under the layout.

    That trace meets what only the code that exchanges data can refuse, such as an attention scheme for a cut length.
    """
    arrays = inventory(config, global_batch, length, place)
    findings = check(place, arrays, global_batch, fast_devices)
    if all(finding.severity != ERROR for finding in findings):
        try:
            _trace_step(config, global_batch, length, place)
        except InputError as error:
            where, _, message = str(error).partition(": ")
            findings = [Finding(ERROR, "refused", where, message), *findings]
    return arrays, findings


def _activations(config: StepConfig, batch: int, length: int, place: Placement) -> Named:
    nothing = Rules({}, {})
    layout = replace(
        place.layout, rules=nothing, activations=nothing, params=nothing, grads=nothing, optimizer=nothing,
        attention="local", pipeline=None,
    )  # fmt: skip
    recorder = RecordingPlacement(layout, abstract_mesh({}))
    _trace_loss(config, batch, length, recorder)
    return recorder.named_sites()


def _trace_loss(config: StepConfig, batch: int, length: int, place: Placement) -> None:
    """Traces the loss of a microbatch without computing anything."""
    compute = config.precision.compute_specs(physical_specs(describe(config.model), place))

    def loss(params: dict, rows: dict[str, jax.Array]) -> jax.Array:
        key = jax.random.key(0) if config.model.dropout else None
        sums = loss_sums(params, config.model, rows, place, z_loss=config.z_loss, dropout_key=key)
        return jnp.asarray(sums.loss_sum)

    jax.eval_shape(loss, _shapes(compute), _shapes(dict(batch_specs(batch, length))))


def _trace_step(config: StepConfig, global_batch: int, length: int, place: Placement) -> None:
    """Traces the whole training step under a layout, forward, backward and update, without computing anything."""
    state = physical_specs(state_specs(config.model, config.optimizer), place)
    step = make_train_step(config, place)
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    jax.eval_shape(step, _shapes(state), _shapes(dict(batch_specs(global_batch, length))), rate)


def _shapes(specs: Tree) -> Tree:
    return map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs)
