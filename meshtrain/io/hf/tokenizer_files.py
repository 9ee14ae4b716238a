"""What transformers and vLLM want to know of a tokenizer that was made here: from a prepared corpus, as JSON files."""

import json
from pathlib import Path
from typing import Any

from meshtrain.io.preparation import read_prepared


def tokenizer_files(corpus: Path, max_length: int) -> dict[str, dict[str, Any]]:
    """File name -> content of what stands beside tokenizer.json: its config, what ends a text, ids for config.json."""
    tokenizer = json.loads((corpus / "tokenizer.json").read_text(encoding="utf-8"))
    end_id = int(read_prepared(corpus)["tokenizer"]["end_id"])
    end = next(token["content"] for token in tokenizer["added_tokens"] if token["id"] == end_id)
    ids = {"bos_token_id": end_id, "eos_token_id": end_id}
    return {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"_from_model_config": True, **ids},
        "config.json": ids,
    }
