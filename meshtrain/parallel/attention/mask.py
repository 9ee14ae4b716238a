"""`Mask`: which keys a query sees, and how scores are scaled. The one statement of the rule that every kernel keeps."""

from dataclasses import dataclass

from jaxtyping import Array, Bool, Int


@dataclass(frozen=True)
class Mask:
    """Key j is visible to query i if both lie in the same document (equal segments, not 0), j is not later than i
    (positions) and, with a window, i - j < window. Segment 0 is padding: it sees nothing and gives 0.

    scale: scores are scale * (q . k). softcap: scores become softcap * tanh(score / softcap). packed: rows may hold
    several documents, or padding in front; where it is False a row is one document from its first token, and padding.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    packed: bool = True


def visible(
    q_positions_BT: Int[Array, "B T"],
    k_positions_BS: Int[Array, "B S"],
    q_segments_BT: Int[Array, "B T"],
    k_segments_BS: Int[Array, "B S"],
    mask: Mask,
) -> Bool[Array, "B T S"]:
    """Whether query t of row b sees key s. Quadratic in the length: for tests and single blocks."""
    ahead_BTS = q_positions_BT[:, :, None] - k_positions_BS[:, None, :]
    same_BTS = (q_segments_BT[:, :, None] == k_segments_BS[:, None, :]) & (k_segments_BS[:, None, :] != 0)
    seen_BTS = same_BTS & (ahead_BTS >= 0)
    return seen_BTS if mask.window is None else seen_BTS & (ahead_BTS < mask.window)
