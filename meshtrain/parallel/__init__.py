"""Who talks to whom? All explicit collectives: attention, the vocabulary's lookup and loss, the pipeline."""

from meshtrain.parallel.attention import Mask, attend
from meshtrain.parallel.cross_entropy import LossSums, cross_entropy
from meshtrain.parallel.embedding import embed_tokens
from meshtrain.parallel.shard import on_shards

__all__ = ["LossSums", "Mask", "attend", "cross_entropy", "embed_tokens", "on_shards"]
