"""Models with adapters of PEFT in the Trainer: what is trained, averaged, saved and exported."""

import copy
from contextlib import nullcontext
from functools import partial

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, ResNetConfig, ResNetForImageClassification

from composable.algorithms import EMA, SWA, Alibi, GradientClipping
from composable.batches.model_call import (
    batch_spec_of,
    call_with_return_loss,
    keyword_call_of,
)
from composable.checkpoint.errors import UnsavableError
from composable.models import HuggingFaceModel
from composable.optim import AdamWScheduleFree, Muon, with_cautious_weight_decay
from tests.support.adapters import adapters, base, text, with_lora
from tests.support.hub_models import HEADS, NOT_MEANS
from tests.support.hugging_face import llama
from tests.support.models import same, weights
from tests.support.runs import make_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*was set in the config:UserWarning"),
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
]
ADAMW = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
OPTIMIZERS = {
    "AdamW": ADAMW,
    "fused": partial(ADAMW, fused=True),
    "SGD": partial(torch.optim.SGD, lr=0.1, weight_decay=0.1),
    "Muon": partial(Muon, lr=0.01),
    "schedule-free": partial(AdamWScheduleFree, lr=0.01, weight_decay=0.1),
    "cautious": lambda params: with_cautious_weight_decay(ADAMW(params)),
}


def trained(model=None, *algorithms, **options):
    options = {"loss_fn": None, "optimizers": ADAMW, "max_duration": "4ba", **options}
    trainer = make_trainer(model or with_lora(), text(), algorithms=list(algorithms), **options)
    trainer.fit()
    return trainer


# --- what is trained ---


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_frozen_model_keeps_its_bits_under_weight_decay(name):
    before = with_lora()

    trainer = trained(copy.deepcopy(before), optimizers=OPTIMIZERS[name])

    after = trainer.state.model
    assert same(list(base(after).values()), list(base(before).values()))
    changed = [not torch.equal(one, adapters(before)[n]) for n, one in adapters(after).items()]
    assert changed == [True] * 2 * 7 * 2
    (optimizer,) = trainer.state.optimizers
    assert set(optimizer.state) <= set(adapters(after).values())


def test_muon_orthogonalizes_the_matrices_of_adapters():
    trainer = trained(optimizers=OPTIMIZERS["Muon"])

    groups = trainer.state.optimizers[0].param_groups
    muon = {id(p) for group in groups if group["half"] == "muon" for p in group["params"]}
    assert muon >= set(map(id, adapters(trainer.state.model).values()))


@pytest.mark.parametrize("options", [{"grad_accum": 2}, {"microbatch_size": 1}], ids=str)
def test_microbatches_train_like_the_whole_batch(options):
    one, other = trained(**options), trained()

    for name, value in adapters(one.state.model).items():
        torch.testing.assert_close(value, adapters(other.state.model)[name])


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_changes_no_bit():
    model = with_lora()
    model.gradient_checkpointing_enable()

    one, other = trained(model), trained()

    assert same(weights(one.state.model), weights(other.state.model))


def test_models_that_peft_wraps_are_called_as_without_it():
    clip = NOT_MEANS["contrastive"].build()
    wrapped = peft.get_peft_model(clip, peft.LoraConfig(target_modules=["q_proj"]))
    answers = HEADS["answers"].build()
    spec = batch_spec_of(with_lora(answers))

    assert keyword_call_of(wrapped) is call_with_return_loss
    assert spec == batch_spec_of(answers)
    assert {*spec.target_names} == {"start_positions", "end_positions"}


# --- averages ---


@pytest.mark.parametrize("average", [EMA("2ba"), SWA("1ba", "1dur", "1ba")], ids=repr)
def test_only_what_is_trained_is_averaged(average):
    trainer = trained(with_lora(), average)

    found = trainer.state.averages[average.name]
    frozen, buffers = base(trainer.state.model), dict(trainer.state.model.named_buffers())
    assert found.keys() == adapters(trainer.state.model).keys() | buffers.keys()
    assert not found.keys() & frozen.keys()


# --- checkpoints ---


@pytest.mark.parametrize(
    "ignored", [(), ("model/weights/*.base_layer.*", "model/weights/*embed_tokens*")], ids=len
)
def test_a_run_resumes_to_the_bit_also_without_the_frozen_weights(tmp_path, ignored):
    algorithms = EMA("2ba"), GradientClipping("norm", 1.0)
    whole = trained(with_lora(), *algorithms)
    saves = {"save_folder": str(tmp_path), "save_interval": "2ba", "save_ignore_keys": ignored}
    trained(with_lora(), *algorithms, **saves)
    path = next(tmp_path.glob("ep*-ba2"))

    again = trained(with_lora(), *algorithms, load_path=str(path), load_ignore_keys=ignored)

    assert same(weights(again.state.model), weights(whole.state.model))
    assert same(*(list(one.state.averages["EMA"].values()) for one in (again, whole)))


# --- export ---


def loaded(path, build=llama):
    return peft.PeftModel.from_pretrained(build(), path)


@pytest.mark.parametrize("wrap", [lambda model: model, HuggingFaceModel], ids=["itself", "adapter"])
@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_adapters_are_read_by_peft(wrap, options, tmp_path):
    trainer = trained(wrap(with_lora(**options)), EMA("2ba"))

    path = trainer.export_weights(tmp_path / "adapters")

    (batch,) = text(1)
    with torch.no_grad():
        expected = trainer.eval([batch])["eval"]["loss"]
        assert loaded(path).eval()(**batch).loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["all linear", "head"])
def test_adapters_of_a_model_with_a_tied_head_are_read(kind, tmp_path):
    def tied():
        return llama(tie_word_embeddings=True)

    names = "all-linear" if kind == "all linear" else ["q_proj", "lm_head"]
    options = {"target_modules": names, "ensure_weight_tying": False}
    with pytest.warns() if kind == "head" else nullcontext():
        trainer = trained(with_lora(tied(), **options))
        path = trainer.export_weights(tmp_path / "adapters")
        found = loaded(path, tied)

    assert same(list(adapters(found).values()), list(adapters(trainer.state.model).values()))


def test_adapters_and_the_merged_model_are_read_by_transformers(tmp_path):
    llama().save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    trainer = trained(with_lora(model))

    path = trainer.export_weights(tmp_path / "adapters")
    merged = copy.deepcopy(trainer.state.model).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")

    (batch,) = text(1)
    expected = trainer.eval([batch])["eval"]["loss"]
    for folder in (path, tmp_path / "merged"):
        one = AutoModelForCausalLM.from_pretrained(folder).eval()
        with torch.no_grad():
            assert one(**batch).loss.item() == pytest.approx(expected, rel=1e-5)


def test_adapters_without_weights_that_were_trained_are_refused(tmp_path):
    model = with_lora()
    model.get_base_model().model.norm.requires_grad_(True)
    trainer = trained(model)

    with pytest.raises(UnsavableError, match=r"model\.norm\.weight of the base .* modules_to_save"):
        trainer.export_weights(tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()


def test_adapters_without_statistics_that_changed_are_refused(tmp_path):
    sizes = {"embedding_size": 4, "hidden_sizes": [4], "depths": [1], "num_labels": 2}
    model = ResNetForImageClassification(ResNetConfig(layer_type="basic", **sizes))
    norms = [one for one in model.modules() if isinstance(one, nn.BatchNorm2d)]
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["convolution"]))
    images = [{"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}]
    trainer = make_trainer(model, images, loss_fn=None, optimizers=ADAMW, max_duration="1ba")
    trainer.fit()

    with pytest.raises(UnsavableError, match=r"normalization\.running_mean of the base model"):
        trainer.export_weights(tmp_path / "adapters")
    for norm in norms:
        norm.eval()
    assert trainer.export_weights(tmp_path / "frozen").is_dir()


def test_adapters_of_changed_layers_are_refused(tmp_path):
    trainer = trained(with_lora(), Alibi(16))

    with pytest.raises(RuntimeError, match="was replaced: it would ignore the change"):
        trainer.export_weights(tmp_path / "adapters")


def test_a_model_that_was_merged_in_place_is_not_trained_further():
    trainer = trained()
    trainer.state.model.merge_and_unload()

    with pytest.raises(ValueError, match="build a new Trainer for the changed model"):
        trainer.fit(duration="1ba")
