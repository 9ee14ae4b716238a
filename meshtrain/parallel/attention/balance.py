"""How evenly a layout deals out the work of attention, counted from the schedule that its ring runs."""

from meshtrain.layout import Placement
from meshtrain.layout.order import num_chunks
from meshtrain.parallel.attention.schedule import ring_schedule

BLOCKS = 4  # of each shard


def balance(place: Placement, length: int, window: int | None) -> list[int]:
    """For each shard of the length, how many blocks of queries and keys it computes in a layer with this window.

    Each shard's queries and keys are cut into BLOCKS blocks; a pair counts if any query of it may see any key in a row
    that is one document. Shards that swap heads for length count as one. Empty where nothing is shared out.
    """
    num_shards, chunks = num_chunks(place)
    if num_shards == 1:
        return []
    return ring_schedule(num_shards, chunks, length, window).balance(BLOCKS)
