"""The training step traced without any array: the one way to its compiled program, to run it or to look at it."""

from collections.abc import Sequence

import jax
import numpy as np

from meshtrain.layout import Placement
from meshtrain.step.state import abstract_state, state_specs
from meshtrain.step.train import StepConfig, make_train_step


def lower_step(
    config: StepConfig, place: Placement, global_batch: int, length: int, fields: Sequence[str]
) -> jax.stages.Lowered:
    """The step for `global_batch` rows of `length` tokens that have these fields, such as io.rows.batch_fields says.

    Nothing is allocated. The placement may be of devices that only a compiler knows; its errors are those of a trace.
    """
    shape = (global_batch, length)
    rows = place.sharding("activations", ("batch", "length"), shape)
    index = place.sharding("activations", ("batch",), shape[:1])
    batch = {name: jax.ShapeDtypeStruct(shape, np.int32, sharding=rows) for name in fields}
    batch["index_B"] = jax.ShapeDtypeStruct(shape[:1], np.uint32, sharding=index)
    state = abstract_state(state_specs(config.model, config.optimizer), place)
    rate = jax.ShapeDtypeStruct((), np.float32)
    return make_train_step(config, place).lower(state, batch, rate)  # type: ignore[attr-defined]
