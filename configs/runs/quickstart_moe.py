"""The quickstart with a mixture of experts: the same text, steps and active parameters as `quickstart`.

    python -m meshtrain.train --config configs/runs/quickstart_moe.py

Where there is no GPU, 8 virtual CPU devices take part: the batch over all of them, 16 experts over 4.

`tiny_moe` with finer experts and shared ones (DeepSeekMoE, 2024): all tokens go to an MLP half as wide as `tiny`'s, and
each to 2 of 16 experts of a quarter of its width. On so little text experts that each see a part of it learn slowly:
with 2 of 8 and none shared the loss stays behind the dense model's.

Expected: 4.32 on held-out text after 600 steps, the dense model 4.34.
"""

from ml_collections import ConfigDict

from configs.models import tiny_moe
from configs.runs import quickstart


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    config.model = tiny_moe.get_config()
    config.model.moe.update(dict(num_experts=16, mlp=176, num_shared=2))
    config.workdir = "runs/quickstart_moe"
    config.layout = "configs/layouts/expert.py"
    return config
