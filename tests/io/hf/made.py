"""Hugging Face folders made by our own writer from random numbers: no library needed."""

from pathlib import Path

import numpy as np

from meshtrain.io.hf import open_folder
from meshtrain.io.hf.known import FAMILIES
from meshtrain.io.hf.writing import Target, write_folder
from meshtrain.layout import named_specs
from meshtrain.model import ModelConfig, describe

LLAMA = ModelConfig(
    num_layers=2, embed=32, num_heads=4, num_kv_heads=2, head_dim=8, mlp=64, vocab=67, max_length=64, rope_theta=20000.0
)


def make_folder(
    path: Path, model: ModelConfig, family: str = "llama", dtype: str = "F32", shard_bytes: int = 10**9
) -> Path:
    """A folder of this model, every number random."""
    rng = np.random.default_rng(0)
    specs = dict(named_specs(describe(model)))

    def weight(name: str) -> np.ndarray:
        return (0.1 * rng.normal(size=specs[name].shape)).astype(np.float32)

    write_folder(path, model, Target(FAMILIES[family], dtype, shard_bytes), weight, progress=False)
    return path


def numbers_of(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder by its name."""
    return {name: np.array(tensor.open()) for name, tensor in open_folder(path).tensors.items()}
