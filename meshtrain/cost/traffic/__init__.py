"""What will a step send, between which devices, and why? Every collective that the declaration asks for."""

from meshtrain.cost.traffic.predict import predict_traffic
from meshtrain.cost.traffic.turns import Turns, make_turns

__all__ = ["Turns", "make_turns", "predict_traffic"]
