"""Models of Transformers in the Trainer: by their own loss, and by a loss of logits."""

import inspect
from functools import partial

import attrs
import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Event
from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    Alibi,
    BlurPool,
    CutMix,
    GatedLinearUnits,
    LabelSmoothing,
    LowPrecisionLayerNorm,
    MixUp,
    NoOpModel,
    ProgressiveResizing,
    SelectiveBackprop,
    SeqLengthWarmup,
)
from composable.distributed import DDP
from composable.losses.mean import LossMeanWarning
from composable.losses.weights import SplitLossError
from composable.metrics import accuracy, perplexity, token_accuracy
from composable.models import HuggingFaceModel
from tests.support.campaign import drawn
from tests.support.hub_models import (
    CLASSES,
    HEADS,
    NOT_MEANS,
    Head,
    classes,
    language,
    pictures,
    text,
)
from tests.support.models import weights
from tests.support.observers import Watch
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer

LENGTHS = [2, 6, 3, 5]
RESNET = Head(
    "ResNetForImageClassification",
    {
        **{"embedding_size": 4, "hidden_sizes": [4], "depths": [1], "layer_type": "basic"},
        "num_labels": CLASSES,
    },
    pictures,
)
sgd = partial(torch.optim.SGD, lr=0.1)
adamw = partial(torch.optim.AdamW, lr=0.1)


def loader_of(head, count=3):
    return [head.batch(LENGTHS, seed=seed) for seed in range(count)]


def fit(head, *, model=None, loader=None, **options):
    head = HEADS.get(head, head)
    trainer = make_trainer(
        model or head.build(),
        loader or loader_of(head),
        **{"loss_fn": None, "optimizers": sgd, **options},
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize("head", HEADS)
def test_weights_equal_those_of_a_plain_loop(head):
    head = HEADS[head]
    model, loader = head.build(), loader_of(head)
    optimizer = sgd(model.parameters())
    for batch in loader * 2:
        model(**batch)[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    assert_close(weights(fit(head).state.model), weights(model), rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"grad_accum": 2}])
def test_encodings_train_like_dictionaries(options):
    loader = [transformers.BatchEncoding(batch) for batch in loader_of(HEADS["causal"])]

    found = fit("causal", loader=loader, **options)

    assert_close(weights(found.state.model), weights(fit("causal", **options).state.model))
    assert found.state.timestamp.sample == 2 * 3 * len(LENGTHS)


def test_contrastive_model_is_called_for_its_loss():
    head = NOT_MEANS["contrastive"]
    (batch,) = loader_of(head, 1)
    expected = head.build()(**batch, return_loss=True).loss

    trainer = fit(head, loader=[batch], max_duration="1ba")

    assert_close(trainer.state.loss, expected.detach())


@pytest.mark.parametrize("head", ["causal", "sounds, a mean", "answers"])
def test_several_batches_of_the_loader_make_one_exact_step(head):
    head = HEADS[head]
    whole, lengths = head.batch([6, 2, 3, 5, 4]), [2, 3]
    parts = [
        {name: part.split(lengths)[i] for name, part in whole.items()} for i in range(len(lengths))
    ]
    expected = fit(head, loader=[whole], max_duration="1ba").state

    found = fit(head, loader=parts, max_duration="1ba", accumulate_batches=2).state

    assert_close(weights(found.model), weights(expected.model))


@pytest.mark.parametrize("precision", ["amp_bf16", "bf16"])
@pytest.mark.parametrize("head", ["causal", "tokens", "classes", "pictures"])
def test_microbatches_are_weighted_in_each_precision(head, precision):
    head = attrs.evolve(HEADS[head], dtype=torch.float32)
    options = {"precision": precision, "max_duration": "1ba"}
    whole = fit(head, **options).state

    split = fit(head, **options, microbatch_size=1).state

    assert split.loss.item() == pytest.approx(whole.loss.item(), rel=0.01)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("head", drawn([HEADS["causal"], NOT_MEANS["contrastive"]], 1))
def test_compiled_model_gives_the_same_weights(head):
    options = {"loader": loader_of(head, 1), "max_duration": "2ba"}
    expected = fit(head, **options).state

    found = fit(head, **options, compile={"backend": "eager"}).state

    assert_close(weights(found.model), weights(expected.model), rtol=0, atol=0)


def test_resumed_run_equals_the_whole_run(tmp_path):
    options = {"grad_accum": 2, "algorithms": EMA("2ba")}

    resumes_exactly(lambda **more: fit("masked", **options, **more).state, tmp_path, 4)


# --- what the loss is a mean over ---


@pytest.mark.parametrize("head", NOT_MEANS)
def test_loss_that_is_not_a_mean_over_its_parts_is_refused(head):
    before, model = weights(NOT_MEANS[head].build()), NOT_MEANS[head].build()
    with pytest.raises(SplitLossError, match="loss_mean_over="):
        fit(NOT_MEANS[head], model=model, grad_accum=2)
    assert_close(weights(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"grad_accum": 2, "loss_mean_over": "next_tokens"}])
def test_does_not_warn_if_nothing_is_weighted_or_the_weight_is_given(options):
    fit(NOT_MEANS["experts"], **options)


def test_next_tokens_are_the_terms_of_a_model_that_shifts_its_labels():
    split = fit("causal", microbatch_size=1, loss_mean_over="next_tokens")

    assert_close(weights(split.state.model), weights(fit("causal").state.model))
    with pytest.warns(LossMeanWarning, match="GPT2LMHeadModel shifts .* pass 'next_tokens'"):
        fit("causal", grad_accum=2, loss_mean_over="tokens")


class Summed(transformers.GPT2LMHeadModel):
    """A model whose loss is a sum."""

    def forward(self, *args, labels=None, **kwargs):
        outputs = super().forward(*args, labels=labels, **kwargs)
        outputs.loss = outputs.loss * labels[:, 1:].ne(-100).sum()
        return outputs


class MeanOfExamples(transformers.GPT2LMHeadModel):
    """A model whose loss is a mean over the examples, each of which is a mean over its tokens."""

    def forward(self, input_ids, labels=None, **kwargs):
        outputs = super().forward(input_ids, **kwargs)
        losses = cross_entropy(outputs.logits[:, :-1].mT, labels[:, 1:], reduction="none")
        outputs.loss = (losses.sum(1) / labels[:, 1:].ne(-100).sum(1)).mean()
        return outputs


def test_loss_of_a_subclass_is_recognized():
    head = Head(MeanOfExamples, HEADS["causal"].config, language)
    whole = fit(head, max_duration="2ba")

    split = fit(head, max_duration="2ba", microbatch_size=1)

    assert_close(weights(split.state.model), weights(whole.state.model))


@pytest.mark.parametrize("adapter", [lambda model: model, HuggingFaceModel])
@pytest.mark.parametrize("options", [{"microbatch_size": 1}, {"parallel": DDP(shards=3)}])
def test_starts_and_ends_of_answers_have_weights_of_their_own(adapter, options):
    head, own = HEADS["answers"], {"max_duration": "2ba"}
    whole = fit(head, model=adapter(head.build()), **own)

    split = fit(head, model=adapter(head.build()), **own, **options)

    assert_close(weights(split.state.model), weights(whole.state.model))
    assert_close(split.state.loss, whole.state.loss)


@pytest.mark.parametrize("adapter", [lambda model: model, HuggingFaceModel])
def test_evaluation_of_answers_is_over_all_of_them(adapter):
    head = HEADS["answers"]
    whole = head.batch([2, 6, 3, 5, 4])
    parts = [{name: part.split([1, 4])[i] for name, part in whole.items()} for i in range(2)]
    model = head.build()

    found = make_trainer(adapter(model), loss_fn=None).eval(parts)["eval"]["loss"]

    assert found == pytest.approx(model.eval()(**whole).loss.item())


def test_loss_times_a_count_is_refused():
    head = Head(Summed, HEADS["causal"].config, language)

    with pytest.raises(SplitLossError, match="the loss of Summed is split, and it is unknown"):
        fit(head, max_duration="2ba", microbatch_size=1)


def test_recognition_leaves_the_model_as_it_was():
    model = HEADS["classes"].build()
    model.classifier.eval()
    trainer = fit("classes", model=model, grad_accum=2, max_duration="1ba")

    modes = {name: module.training for name, module in trainer.state.model.named_modules()}

    assert [name for name, training in modes.items() if not training] == ["classifier"]


# --- evaluation and prediction ---


def test_evaluation_is_over_all_tokens_of_padded_batches():
    head, metrics = HEADS["causal"], {"perplexity": perplexity}
    metrics["accuracy"] = partial(token_accuracy, shift=True)
    loader = [head.batch([2, 6]), head.batch([3], seed=1)]
    model = head.build()

    results = make_trainer(model, loss_fn=None, metrics=metrics).eval(loader)["eval"]

    model.eval()
    logits = torch.cat([model(**batch).logits[:, :-1].flatten(0, 1) for batch in loader])
    labels = torch.cat([batch["labels"][:, 1:].flatten() for batch in loader])
    right = (logits.argmax(1) == labels)[labels != -100].double().mean().item()
    loss = cross_entropy(logits, labels)
    expected = {"loss": loss.item(), "perplexity": loss.exp().item(), "accuracy": right}
    assert results == pytest.approx(expected)


@pytest.mark.parametrize("head", ["causal", "sounds, a mean", "sounds, a sum"])
def test_evaluation_of_batches_of_one_is_weighted_too(head):
    head = HEADS[head]
    loader, model = [head.batch([n], seed=n) for n in (6, 2, 3)], head.build()

    results = make_trainer(model, loss_fn=None).eval(loader)["eval"]

    losses = torch.stack([model.eval()(**batch).loss.detach() for batch in loader])
    weights = torch.tensor([5, 1, 2]) if head is HEADS["causal"] else torch.ones(3)
    expected = (losses * weights).sum() / weights.sum()
    if head is HEADS["sounds, a sum"]:
        expected = losses.sum()
    assert results["loss"] == pytest.approx(expected.item())


@pytest.mark.parametrize("loss_fn", [None, cross_entropy])
@pytest.mark.parametrize("head", ["classes, RoBERTa", "tokens, as tuples"])
def test_metrics_take_logits_and_labels(loss_fn, head):
    head = HEADS[head]
    if loss_fn is not None:
        loss_fn = lambda logits, labels: cross_entropy(logits.movedim(-1, 1), labels)  # noqa: E731
    model, batch = head.build().eval(), head.batch(LENGTHS)
    logits = next(part for part in model(**batch, return_dict=False) if part.ndim)

    options = {} if loss_fn is None else {"loss_mean_over": "tokens"}
    trainer = make_trainer(model, loss_fn=loss_fn, metrics={"accuracy": accuracy}, **options)

    expected = accuracy(logits, batch["labels"]).mean().item()
    assert trainer.eval([batch])["eval"]["accuracy"] == pytest.approx(expected)


def test_predictions_need_no_labels():
    head = HEADS["causal"]
    model, batch = head.build().eval(), text(LENGTHS)

    (outputs,) = make_trainer(model, loss_fn=None).predict([batch])

    assert_close(outputs.logits, model(**batch).logits)


# --- a loss of logits and labels, and the algorithms that need one ---


@pytest.mark.parametrize("head", ["pictures", "classes, RoBERTa"])
def test_loss_of_logits_equals_the_loss_of_the_model(head):
    own = fit(head, max_duration="2ba")

    found = fit(head, loss_fn=cross_entropy, max_duration="2ba")

    assert_close(weights(found.state.model), weights(own.state.model))


def test_loss_takes_outputs_without_logits_as_they_are():
    def loss_fn(outputs, targets):
        starts, ends = targets
        length = outputs.start_logits.shape[1]
        both = (outputs.start_logits, starts), (outputs.end_logits, ends)
        return sum(cross_entropy(a, b.clamp(max=length), ignore_index=length) for a, b in both) / 2

    own = fit("answers", max_duration="2ba")

    found = fit("answers", loss_fn=loss_fn, max_duration="2ba")

    assert_close(weights(found.state.model), weights(own.state.model))


def test_pairs_of_inputs_and_targets_train_with_a_loss():
    pairs = [tuple(batch.values()) for batch in loader_of(HEADS["pictures"])]

    found = fit("pictures", loader=pairs, loss_fn=cross_entropy, input_key=0, target_key=1)

    expected = fit("pictures", loss_fn=cross_entropy)
    assert_close(weights(found.state.model), weights(expected.state.model))


NEED_LOGITS = {
    "MixUp": MixUp(),
    "CutMix": CutMix(),
    "LabelSmoothing": LabelSmoothing(),
    "weights examples": SelectiveBackprop(start=0.0, interrupt=0),
}


@pytest.mark.parametrize("name", NEED_LOGITS)
def test_algorithm_that_needs_logits_runs_with_a_loss_and_says_so_without(name):
    fit("pictures", algorithms=NEED_LOGITS[name], loss_fn=cross_entropy)

    with pytest.raises(
        TypeError, match=rf"{name}.* needs the loss .* computes its own loss; pass loss_fn"
    ):
        fit("pictures", algorithms=NEED_LOGITS[name])


@pytest.mark.parametrize("per", [nn.CrossEntropyLoss(), cross_entropy])
def test_smoothed_and_mixed_labels_without_effect_give_the_same_weights(per):
    plain = fit("pictures", loss_fn=per)

    found = fit("pictures", loss_fn=per, algorithms=[LabelSmoothing(0.0), MixUp(alpha=1e-9)])

    assert_close(weights(found.state.model), weights(plain.state.model))


TEXTS = {
    "sequence lengths": SeqLengthWarmup(min_seq_length=2, max_seq_length=6, step_size=1),
    "alibi": Alibi(max_sequence_length=12, train_sequence_length_scaling=0.5),
    "gated": GatedLinearUnits(),
    "low precision": LowPrecisionLayerNorm(),
    "sam": SAM(),
    "ema": EMA("2ba"),
    "no-op": NoOpModel(),
}


@pytest.mark.parametrize("name", TEXTS)
def test_algorithm_runs_on_the_loss_of_the_model(name):
    loader = [head_batch | {} for head_batch in loader_of(HEADS["causal"])]
    if name == "alibi":  # a segment of padding has no labels
        loader = [HEADS["causal"].batch([6, 6, 6], seed=seed) for seed in range(3)]
    watch = Watch(Event.AFTER_LOSS, read=lambda state: state.loss.isfinite().item())

    fit("causal", loader=loader, algorithms=TEXTS[name], callbacks=watch)

    assert len(watch.values) >= 6
    assert all(watch.values)


@pytest.mark.parametrize("loss_fn", [None, cross_entropy])
@pytest.mark.parametrize("algorithm", [ProgressiveResizing(), BlurPool(min_channels=0), SWA()])
def test_algorithm_runs_on_images_by_their_name(algorithm, loss_fn):
    trainer = fit(RESNET, algorithms=algorithm, loss_fn=loss_fn, eval_dataloader=loader_of(RESNET))

    assert trainer.state.loss.isfinite()


@pytest.mark.parametrize(
    ("head", "algorithm"),
    [
        ("causal, Llama", LowPrecisionLayerNorm()),
        ("masked", GatedLinearUnits()),
        ("sequences", ()),
        ("pictures", ()),
    ],
)
def test_vectors_are_exempt_from_weight_decay_after_surgery_too(head, algorithm):
    options = {"loss_fn": None, "algorithms": algorithm, "decay_norms_and_biases": False}
    state = make_trainer(HEADS[head].build(), **options, optimizers=adamw).state

    decayed, rest = (group["params"] for group in state.optimizers[0].param_groups)

    assert {p.ndim for p in rest} == {1}
    assert min(p.ndim for p in decayed) == 2
    assert len({*decayed, *rest}) == len(decayed) + len(rest) == len(list(state.model.parameters()))


# --- errors ---


@pytest.mark.parametrize(
    ("head", "batch", "message"),
    [
        ("causal", text(LENGTHS), r"GPT2LMHeadModel returned no loss .*'attention_mask'.*'labels'"),
        (Head("BertModel", HEADS["masked"].config, text), text(LENGTHS), "with a head"),
        ("answers", text(LENGTHS), "'start_positions' and 'end_positions'"),
        ("tokens, as tuples", text(LENGTHS), "returned no loss"),
    ],
)
def test_rejects_a_batch_without_labels(head, batch, message):
    with pytest.raises(ValueError, match=message):
        fit(head, loader=[batch])


def test_rejects_a_batch_that_is_no_mapping():
    pair = tuple(classes(LENGTHS).values())

    with pytest.raises(TypeError, match=r"the batch is a tuple; return dictionaries .* loss_fn"):
        fit("classes", loader=[pair], input_key=0)


class PeftModel(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.base_model = model

    def get_base_model(self):
        return self.base_model

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


PeftModel.__module__ = "peft.peft_model"


class WithLoss(nn.Module):
    """A model that returns the loss of the one that it wraps."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, batch):
        return self.inner(**batch)

    def loss(self, outputs, batch):
        return outputs.loss


@pytest.mark.parametrize("wrap", [PeftModel, WithLoss])
def test_model_that_wraps_one_is_recognized(wrap):
    keys = {"input_key": "input_ids", "target_key": "labels"}
    whole, split = (
        fit("causal", model=wrap(HEADS["causal"].build()), **keys, **options).state.model
        for options in ({}, {"grad_accum": 4})
    )

    assert "labels" not in inspect.signature(whole.forward).parameters
    assert_close(weights(split), weights(whole))
