"""What comes in and what goes out? Token sets on disk, rows by random access, batches on devices, checkpoints."""

from meshtrain.io.config import DataConfig, PrepareConfig
from meshtrain.io.loader import Batches, evaluation_batches
from meshtrain.io.preparation import Prepared, prepare
from meshtrain.io.rows import Source
from meshtrain.io.sources import ensure_prepared, open_held_out, open_train
from meshtrain.io.tokens import TokenSet, open_token_set

__all__ = [
    "Batches", "DataConfig", "PrepareConfig", "Prepared", "Source", "TokenSet",
    "ensure_prepared", "evaluation_batches", "open_held_out", "open_token_set", "open_train", "prepare",
]  # fmt: skip
