"""Models on the Hugging Face Hub, with a stand-in that implements its protocol."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from composable._support.checks import PathError
from composable.algorithms import LabelSmoothing
from composable.checkpoint import (
    MissingCheckpointError,
    UnreadableCheckpointError,
    UnwritableCheckpointError,
    load_weights,
)
from tests.support import hub as stand_in
from tests.support.data import batches
from tests.support.hugging_face import build
from tests.support.models import linear, same, weights
from tests.support.runs import make_trainer

# Of httpx, which huggingface_hub uploads with.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

FILE = "hf://me/model/model.safetensors"
TEXT = [{"input_ids": (ids := torch.arange(24).reshape(2, 12) % 17), "labels": ids}] * 3


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Serve a hub, which huggingface_hub takes for the real one."""
    with stand_in.serving() as server:
        for name, value in {
            "ENDPOINT": server.address,
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_XET": True,
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HUGGINGFACE_CO_URL_TEMPLATE": server.address
            + "/{repo_id}/resolve/{revision}/{filename}",
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", stand_in.TOKEN)
        yield server


def trained(**options):
    trainer = make_trainer(eval_dataloader=batches([4]), **options)
    trainer.fit()
    return trainer


def test_an_exported_file_is_loaded_from_its_commit(hub):
    trainer = trained(algorithms=LabelSmoothing(0.1))
    url = trainer.export_weights(FILE)
    assert url == f"hf://me/model@{hub.commit('me/model')}/model.safetensors"
    later = trained(seed=1)
    later.export_weights(FILE)

    first, last = linear(1), linear(1)
    assert load_weights(first, url).source == url
    assert load_weights(last, FILE).source == f"hf://me/model@{hub.commit('me/model')}/{url[-17:]}"
    assert same(weights(first), weights(trainer.state.model))
    assert same(weights(last), weights(later.state.model))


def test_a_repository_has_a_model_of_transformers_with_its_tokenizer_and_card(hub):
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    model = build("gpt2", num_hidden_layers=1, max_position_embeddings=16)
    trainer = make_trainer(model, TEXT, loss_fn=None, eval_dataloader=TEXT)
    trainer.fit()
    trainer.export_weights("hf://me/gpt", tokenizer=PreTrainedTokenizerFast(tokenizer_object=words))

    files = hub.files("me/gpt")
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} < files.keys()
    assert json.loads(files["config.json"])["model_type"] == "gpt2"
    assert load(files["model.safetensors"])
    loaded = GPT2LMHeadModel.from_pretrained("me/gpt")
    assert same(weights(loaded), weights(model))
    again = build("gpt2", num_hidden_layers=1, max_position_embeddings=16)
    load_weights(again, "hf://me/gpt")
    assert same(weights(again), weights(model))


def test_the_card_tells_data_methods_results_and_versions(hub):
    trainer = trained(algorithms=LabelSmoothing(0.1))
    trainer.export_weights(FILE)
    card = hub.files("me/model")["README.md"].decode()
    loss = trainer.state.metrics["eval"]["loss"]
    for line in (
        "library_name: pytorch",
        "| train/batches | 3 |",
        "| algorithms/LabelSmoothing | LabelSmoothing(smoothing=0.1) |",
        "| optimizers/0 | SGD |",
        "| trained/batches | 6 |",
        f"| eval/loss | {loss} |",
        f"| torch | {torch.__version__} |",
    ):
        assert f"\n{line}\n" in card


@pytest.mark.parametrize("own", [True, False])
def test_other_files_and_a_card_of_the_user_stay(own, hub):
    trainer = trained()
    trainer.export_weights(FILE)
    files = hub.files("me/model")
    files["notes.txt"] = b"mine"
    if own:
        files["README.md"] = b"# Mine\n"
    trained(algorithms=LabelSmoothing(0.2)).export_weights(FILE)
    files = hub.files("me/model")
    assert files["notes.txt"] == b"mine"
    assert (files["README.md"] == b"# Mine\n") is own
    assert (b"smoothing=0.2" in files["README.md"]) is not own


def test_a_run_starts_from_weights_on_the_hub(hub):
    trainer = trained()
    url = trainer.export_weights(FILE)
    again = make_trainer(linear(1), load_path=url, load_weights_only=True)
    assert same(weights(again.state.model), weights(trainer.state.model))


def test_a_damaged_download_is_refused(hub):
    url = trained().export_weights(FILE)
    hub.damaged.add("model.safetensors")
    with pytest.raises(UnreadableCheckpointError, match="differs from its hash on the hub"):
        load_weights(linear(), url)


@pytest.mark.parametrize("url", ["hf://me/other", "hf://me/model/other.safetensors"])
def test_what_is_missing_is_named(url, hub):
    trained().export_weights(FILE)
    errors = (MissingCheckpointError, UnreadableCheckpointError)
    with pytest.raises(errors, match=url):
        load_weights(linear(), url)


def test_without_a_token_nothing_is_written(hub, monkeypatch):
    trainer = trained()
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PathError, match="run `hf auth login`, or set HF_TOKEN"):
        trainer.export_weights(FILE)
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(UnwritableCheckpointError, match="cannot be written"):
        trainer.export_weights(FILE)
    assert not hub.commits


def test_a_folder_of_this_machine_has_a_card(tmp_path):
    trainer = make_trainer(build("gpt2", num_hidden_layers=1), TEXT, loss_fn=None)
    path = Path(trainer.export_weights(tmp_path / "model"))
    assert "library_name: transformers" in (path / "README.md").read_text()
    trainer.export_weights(path)


def test_a_tokenizer_is_checked(tmp_path):
    with pytest.raises(TypeError, match="tokenizer='gpt2' must be a tokenizer"):
        make_trainer().export_weights(tmp_path / "model", tokenizer="gpt2")
