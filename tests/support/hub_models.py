"""Small models of Transformers with each kind of head, and batches for them."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.utils.reproducibility import preserve_rng

WORDS, LENGTH, CLASSES, WIDTH, HEADS_OF_ATTENTION = 17, 6, 3, 12, 3
NO_DROPOUT = ("dropout", "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob")
NO_DROPOUT += ("attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout_rate", "seq_classif_dropout")
NO_DROPOUT += ("hidden_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")

TEXT = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS_OF_ATTENTION,
    "intermediate_size": 16,
    "max_position_embeddings": LENGTH + 2,
}
GPT2 = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 1, "n_head": 3, "n_positions": LENGTH}
DISTILBERT = {"vocab_size": WORDS, "dim": WIDTH, "n_heads": 3, "n_layers": 1, "hidden_dim": 16}
T5 = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 3}
BART = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 3 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 16 for part in ("encoder", "decoder")},
    "max_position_embeddings": LENGTH,
    "forced_eos_token_id": None,
}
IMAGES = {
    **{name: TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 4,
}
SOUNDS = {
    **{name: TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
    **{"vocab_size": WORDS, "intermediate_size": 16, "layerdrop": 0.0, "apply_spec_augment": False},
    **{"conv_dim": (4,), "conv_stride": (4,), "conv_kernel": (4,), "num_feat_extract_layers": 1},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
    "ctc_zero_infinity": True,
}
EXPERTS = {"num_key_value_heads": 3, "num_local_experts": 4, "num_experts_per_tok": 2}


def draw(*shape: int, low: int = 3, high: int = WORDS, seed: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def text(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Return token ids that are padded to one length, with their mask."""
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": draw(len(lengths), LENGTH, seed=seed) * mask, "attention_mask": mask}


def language(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    batch = text(lengths, seed)
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def masked_language(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Keep half of the labels, and the first one."""
    batch = language(lengths, seed)
    kept = draw(len(lengths), LENGTH, low=0, high=2, seed=seed + 1).bool()
    kept[:, 0] = True
    return {**batch, "labels": batch["labels"].masked_fill(~kept, -100)}


def tagged(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    batch = language(lengths, seed)
    return {**batch, "labels": torch.where(batch["labels"] < 0, -100, batch["labels"] % CLASSES)}


def classes(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Return texts with a class each; every third has none."""
    labels = draw(len(lengths), low=0, high=CLASSES, seed=seed + 1)
    return {**text(lengths, seed), "labels": labels.where(torch.arange(len(lengths)) % 3 < 2, -100)}


def numbers(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    return {**text(lengths, seed), "labels": draw(len(lengths), seed=seed + 1).double()}


def sets_of_classes(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    labels = draw(len(lengths), CLASSES, low=0, high=2, seed=seed + 1).double()
    return {**text(lengths, seed), "labels": labels}


def answers(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Return texts with the positions of an answer; some starts and more ends are cut off."""
    ends = torch.tensor(lengths) - 1
    numbers, outside = torch.arange(len(lengths)) % 3, torch.tensor(LENGTH + 1)
    starts = torch.where(numbers == 2, outside, ends.clamp(max=1))
    ends = torch.where(numbers >= 1, outside, ends)
    return {**text(lengths, seed), "start_positions": starts, "end_positions": ends}


def choices(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    two = {name: torch.stack([one, one.roll(1, 1)], 1) for name, one in text(lengths, seed).items()}
    return {**two, "labels": draw(len(lengths), low=0, high=2, seed=seed + 1)}


def pictures(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(len(lengths), 3, 8, 8, generator=generator, dtype=torch.float64)
    return {"pixel_values": pixels, "labels": draw(len(lengths), low=0, high=CLASSES, seed=seed)}


def sounds(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Return sounds of one length, with texts that are shorter."""
    generator = torch.Generator().manual_seed(seed)
    waves = torch.randn(len(lengths), 80, generator=generator, dtype=torch.float64)
    return {"input_values": waves, "labels": language(lengths, seed)["labels"]}


def captions(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    return {**text(lengths, seed), "pixel_values": pictures(lengths, seed)["pixel_values"]}


@attrs.frozen(eq=False)
class Head:
    """A class of Transformers with a head, and its batches of texts of given lengths."""

    model: str | type[nn.Module]
    config: dict[str, Any]
    batch: Callable[..., dict[str, Tensor]]
    dtype: torch.dtype = torch.float64

    def build(self, **options: Any) -> nn.Module:
        """Build the model, the same at each call, without dropout."""
        import transformers  # takes seconds, and is optional

        kind: Any = self.model
        kind = getattr(transformers, kind) if isinstance(kind, str) else kind
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        config = kind.config_class(**{**special, **self.config, **options})
        for name in NO_DROPOUT:
            if hasattr(config, name):
                setattr(config, name, 0.0)
        with preserve_rng():
            torch.default_generator.manual_seed(0)
            return kind(config).to(self.dtype).train()


LABELS = {"num_labels": CLASSES}
HEADS = {
    "causal": Head("GPT2LMHeadModel", GPT2, language),
    "causal, Llama": Head("LlamaForCausalLM", {**TEXT, "num_key_value_heads": 3}, language),
    "decoder that does not shift": Head(
        "BartForCausalLM", {**BART, "is_decoder": True, "is_encoder_decoder": False}, language
    ),
    "masked": Head("BertForMaskedLM", TEXT, masked_language),
    "tokens": Head("BertForTokenClassification", {**TEXT, **LABELS}, tagged),
    "tokens, as tuples": Head(
        "BertForTokenClassification", {**TEXT, **LABELS, "return_dict": False}, tagged
    ),
    "classes": Head("DistilBertForSequenceClassification", {**DISTILBERT, **LABELS}, classes),
    "classes, RoBERTa": Head("RobertaForSequenceClassification", {**TEXT, **LABELS}, classes),
    "classes, GPT-2": Head("GPT2ForSequenceClassification", {**GPT2, **LABELS}, classes),
    "numbers": Head("BertForSequenceClassification", {**TEXT, "num_labels": 1}, numbers),
    "sets of classes": Head(
        "BertForSequenceClassification",
        {**TEXT, **LABELS, "problem_type": "multi_label_classification"},
        sets_of_classes,
    ),
    "answers": Head("BertForQuestionAnswering", TEXT, answers),
    "choices": Head("BertForMultipleChoice", TEXT, choices),
    "sequences": Head("T5ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}, language),
    "sequences, BART": Head("BartForConditionalGeneration", BART, language),
    "sounds, a sum": Head("Wav2Vec2ForCTC", {**SOUNDS, "ctc_loss_reduction": "sum"}, sounds),
    "sounds, a mean": Head("Wav2Vec2ForCTC", {**SOUNDS, "ctc_loss_reduction": "mean"}, sounds),
    "pictures": Head("ViTForImageClassification", {**IMAGES, **LABELS}, pictures),
}
NOT_MEANS = {
    "contrastive": Head(
        "CLIPModel", {"text_config": TEXT, "vision_config": IMAGES, "projection_dim": 8}, captions
    ),
    "experts": Head(
        "MixtralForCausalLM",
        {
            **TEXT,
            **EXPERTS,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.5,
            "initializer_range": 1.0,
        },
        language,
        torch.float32,  # that of its kernels
    ),
}
