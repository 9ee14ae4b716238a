"""`Family`: what a kind of Hugging Face model is called, how its config.json reads, and its table of names.

A new family is one value of this class; nothing else knows families by name.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtrain.errors import InputError, nearest
from meshtrain.io.hf.fields import Group, Must, Reader, Values, all_typed
from meshtrain.io.hf.table import Line
from meshtrain.layout import named_specs
from meshtrain.model import ModelConfig, MoEConfig, describe
from meshtrain.model.config import check_layers

# Keys that say nothing about what the model computes: provenance, generation, training of others, other heads.
IRRELEVANT = frozenset({
    "_name_or_path", "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "auto_map",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "tokenizer_class", "use_cache",
    "cache_implementation", "_attn_implementation_autoset", "output_attentions", "output_hidden_states",
    "output_router_logits", "return_dict", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task",
    "task_specific_params", "pretraining_tp", "unsloth_version", "unsloth_fixed",
    "attention_dropout",  # of training alone, and not done here
    "gradient_checkpointing", "chunk_size_feed_forward", "torchscript", "use_bfloat16", "tf_legacy_loss", "is_decoder",
    "tie_encoder_decoder", "cross_attention_hidden_size", "prefix", "remove_invalid_values", "is_llama_config",
    "transformers.js_config",
    # Of generation, as old files have it in config.json.
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
})  # fmt: skip
# Keys that any config.json may have, and that would make another model of it.
GENERAL = (
    Must("is_encoder_decoder", (False,), "a model of two parts."),
    Must("add_cross_attention", (False,), "a decoder of an encoder."),
    Must("pruned_heads", ({},), "heads that were taken out."),
    Must("rope_interleaved", (False,), "rotated pairs in another order."),
    Must("use_mrope", (False,), "positions of several dims."),
)
# Fields that only training knows: a folder says nothing of them, or its word is no more than a default.
TRAINING = ("dropout", "init_std")
TRAINING_EXPERTS = ("balance_loss", "balance_over", "z_loss", "bias_rate")


@dataclass(frozen=True)
class Family:
    """model_type and architecture as in config.json; `prefix`: what stands before the names of the model's inner part.

    `output`: the name of the output matrix. `ignored`: endings of tensors that are computed, not learned.
    `spare_layers`: layers behind the model's last one guess further tokens; they are passed over.
    """

    model_type: str
    architecture: str
    groups: tuple[Group, ...]
    lines: tuple[Line, ...]
    prefix: str = "model."
    output: str = "lm_head.weight"
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)
    irrelevant: tuple[str, ...] = ()
    spare_layers: bool = False

    def model(self, values: Mapping[str, Any], source: str) -> ModelConfig:
        """What a config.json describes; InputError for a key that is not understood."""
        given, fields = Reader(values, source), dict[str, Any]()
        try:
            for group in (*GENERAL, *self.groups):
                fields |= group.read(given)
                check_layers(fields.get("num_layers"), source)  # what comes next may count them
        except (TypeError, ValueError, ArithmeticError) as error:
            raise InputError(f"{source}: a value of another type than {self.model_type} has: {error}.") from None
        known = given.taken | IRRELEVANT | set(self.irrelevant)
        for key in values:
            if key not in known:
                raise InputError(
                    f"{source}: {key}={values[key]!r}: not a key of {self.model_type} that is known here, so it is not"
                    f" known whether it changes what the model computes.{nearest(key, known)} Remove it if it does not."
                )
        try:
            fields = all_typed(fields)
        except TypeError as error:
            raise InputError(f"{source}: model.{error}.") from None
        try:
            return ModelConfig(**fields)
        except (InputError, TypeError) as error:
            raise InputError(f"{source}: {error}") from None

    def config(self, model: ModelConfig, start: Mapping[str, Any] | None, source: str) -> Values:
        """The config.json of a model: `start` (the file that the run began with) with the groups that differ replaced.

        InputError where this family has no way to say what the model computes.
        """
        written: Values = {"architectures": [self.architecture], "model_type": self.model_type}
        written |= start or {}
        for group in self.groups:
            fresh = {key: value for key, value in written.items() if key not in group.keys} | group.write(model)
            wanted = {name: getattr(model, name) for name in group.read(Reader(fresh, source))}
            if start is None or _differs(group, written, wanted, source):
                written = fresh
        read = self.model(written, source)
        lost = [
            f"model.{field.name}={getattr(model, field.name)!r}"
            for field in dataclasses.fields(ModelConfig)
            if field.name not in TRAINING and _meaning(read, field.name) != _meaning(model, field.name)
        ]
        if lost:
            raise InputError(f"a {self.model_type} config.json cannot say {', '.join(lost)}.")
        return written

    def passes_over(self, name: str, model: ModelConfig) -> bool:
        """Whether a tensor of a file is no weight of the model, by intent."""
        layer = re.match(r"model\.layers\.(\d+)\.", name) if self.spare_layers else None
        return name.endswith(self.ignored) or (layer is not None and int(layer[1]) >= model.num_layers)

    def weights(self, model: ModelConfig) -> list[tuple[Line, Any]]:
        """(line, spec) of every weight of the model, in the order of the table."""
        specs = dict(named_specs(describe(model)))
        lines = [(line, specs[line.path]) for line in self.lines if line.path in specs]
        missing = set(specs) - {line.path for line, _ in lines}
        if missing:
            raise InputError(f"a {self.model_type} file has no place for the weight {sorted(missing)[0]}.")
        return lines


def _differs(group: Group, written: Values, wanted: Values, source: str) -> bool:
    try:
        return {name: _learned(value) for name, value in group.read(Reader(written, source)).items()} != {
            name: _learned(value) for name, value in wanted.items()
        }
    except InputError:
        return True


def _meaning(model: ModelConfig, name: str) -> Any:
    """A field's value, the same for two ways to say the same."""
    if name in ("window", "window_layers"):
        return [model.layer_window(layer) for layer in range(model.num_layers)]
    if name == "query_scale":
        return model.attention_scale
    if name == "mlp" and model.num_moe_layers == model.num_layers:
        return None  # no layer has such an MLP
    return _learned(getattr(model, name))


def _learned(value: Any) -> Any:
    """A field's value without what only training knows of its experts."""
    if not isinstance(value, MoEConfig):
        return value
    usual: Values = {
        field.name: field.default for field in dataclasses.fields(MoEConfig) if field.name in TRAINING_EXPERTS
    }
    return dataclasses.replace(value, **usual)
