"""Every family that can be read and written, by the model_type of its config.json. Add a family here."""

from meshtrain.io.hf.experts import DEEPSEEK_V3, MIXTRAL, QWEN3_MOE
from meshtrain.io.hf.families import DENSE

FAMILIES = {family.model_type: family for family in (*DENSE, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3)}
