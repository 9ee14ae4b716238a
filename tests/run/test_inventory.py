"""The inventory is that of the real step: its activations come from a trace, its state from the optimizer."""

import numpy as np

from meshtrain.layout import named_specs
from meshtrain.model import describe
from meshtrain.run.inventory import inventory
from meshtrain.step import OptimizerConfig, Precision, StepConfig
from tests.layout.arrays import placed
from tests.run.proofs import BATCH, LENGTH, MODELS

CONFIG = StepConfig(MODELS["gpt"], OptimizerConfig(), Precision("bfloat16"))


def test_activations_are_those_of_the_trace() -> None:
    here = placed(8, mesh=dict(data=8), rules=dict(batch="data"), accumulate=2)
    arrays = inventory(CONFIG, 2 * BATCH, LENGTH, here)
    dims = {spec.dims for _, spec in arrays.activations}
    assert {
        ("batch", "stream", "embed"),
        ("batch", "length", "embed"),
        ("batch", "length", "heads", "head_dim"),
        ("batch", "length", "mlp"),
    } <= dims
    assert {spec.shape[0] for _, spec in arrays.activations} == {BATCH}  # of one microbatch
    assert len({path for path, _ in arrays.activations}) == len(arrays.activations)


def test_classes_have_their_dtypes() -> None:
    here = placed(8, mesh=dict(data=8), rules=dict(batch="data"))
    arrays = inventory(CONFIG, BATCH, LENGTH, here)
    weights = named_specs(describe(MODELS["gpt"]))
    assert [path for path, _ in arrays.params] == [path for path, _ in weights]
    assert {np.dtype(spec.dtype).name for _, spec in arrays.params} == {"bfloat16"}
    assert {np.dtype(spec.dtype).name for _, spec in arrays.grads} == {"bfloat16"}
    assert {np.dtype(spec.dtype).name for _, spec in arrays.optimizer if spec.dims} == {"float32"}
    assert sum(bool(spec.dims) for _, spec in arrays.optimizer) == 3 * len(weights)
    summed = inventory(CONFIG, 2 * BATCH, LENGTH, placed(8, mesh=dict(data=8), rules=dict(batch="data"), accumulate=2))
    assert {np.dtype(spec.dtype).name for _, spec in summed.grads} == {"float32"}
