"""How do tokens reach experts on other devices, and results the tokens? By two exchanges around the experts' MLP."""

from meshtrain.parallel.experts.choose import by_token
from meshtrain.parallel.experts.place import places_in_row
from meshtrain.parallel.experts.run import ExpertMlp, run_experts

__all__ = ["ExpertMlp", "by_token", "places_in_row", "run_experts"]
