"""The quickstart with a mixture of experts: the same text, steps and active parameters as `quickstart`.

    python -m meshtrain.train --config configs/runs/quickstart_moe.py

Where there is no GPU, 8 virtual CPU devices take part: the batch over all of them, 8 experts over 4.

Expected: 4.35 on held-out text after 600 steps, as the dense model (4.34).
"""

from ml_collections import ConfigDict

from configs.models import tiny_moe
from configs.runs import quickstart


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    config.model = tiny_moe.get_config()
    config.workdir = "runs/quickstart_moe"
    config.layout = "configs/layouts/expert.py"
    return config
