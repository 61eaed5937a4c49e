"""Secrets are in nothing that a run records."""

import json
import sys
from pathlib import Path

import pytest

from composable._support.secrets import REDACTED, is_secret, redact, redact_command
from composable.callbacks import CheckpointSaver
from composable.core.callback import Callback
from composable.loggers import InMemoryLogger
from composable.replay import ReplayError, replay_script
from composable.report import RecordedRun, write_report
from tests.support.runs import make_trainer

NAMES = {
    True: [
        *("api_key", "apiKey", "API_KEY", "--wandb-api-key", "token", "hf_token", "accessToken"),
        *("password", "db.password", "PASSWD", "client_secret", "secret_key", "GITHUB_TOKEN"),
        *("aws_secret_access_key", "credentials", "auth-token"),
    ],
    False: [
        *("input_key", "target_key", "key", "pad_token", "eos_token_id", "max_tokens", "tokenizer"),
        *("num_tokens", "count_tokens", "tokens", "author", "keyboard", "passes", "lr", ""),
        "secretary",
    ],
}


@pytest.mark.parametrize(("secret", "name"), [(s, n) for s, names in NAMES.items() for n in names])
def test_names_of_secrets(secret, name):
    assert is_secret(name) is secret


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mysql://me:p4ss@host:3306/db", "mysql://[redacted]@host:3306/db"),
        ("https://ghp_abc@github.com/x", "https://[redacted]@github.com/x"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("https://host/x?token=abc&lr=1", "https://host/x?token=[redacted]&lr=1"),
        ("s3://bucket/file@2", "s3://bucket/file@2"),
        ("Client(api_key='a b', lr=0.1)", "Client(api_key=[redacted], lr=0.1)"),
        ('{"password": "x", "n": 1}', '{"password": [redacted], "n": 1}'),
        ("Client(api_key=None)", "Client(api_key=None)"),
        ("MixUp(alpha=0.2)", "MixUp(alpha=0.2)"),
        ("no secret: here", "no secret: [redacted]"),
        ("--api-key=abc", "--api-key=[redacted]"),
        ("1_api_key=abc", "1_api_key=[redacted]"),
        ("at_https://me:abc@host", "at_https://[redacted]@host"),
        ("-https://abc@host", "-https://[redacted]@host"),
    ],
)
def test_texts_lose_the_values_of_secrets(text, expected):
    assert redact(text) == expected


@pytest.mark.parametrize("run", ["x", "x.", "x-", "x ", "x=", "x://", "'"])
def test_long_texts_without_secrets_are_kept(run):
    text = run * 200_000  # an hour, if the time were quadratic

    assert redact(text) == text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--token", "x", "--lr", "1"], ["--token", REDACTED, "--lr", "1"]),
        (["--token", "--lr", "1"], ["--token", "--lr", "1"]),
        (["--password=x y"], [f"--password={REDACTED}"]),
        (["wandb.api_key=x", "model.key=y"], [f"wandb.api_key={REDACTED}", "model.key=y"]),
        (["--store", "http://a:b@c"], ["--store", f"http://{REDACTED}@c"]),
        (["-p", "x"], ["-p", "x"]),
    ],
)
def test_a_command_loses_the_values_of_secrets(given, expected):
    assert redact_command(given) == expected


class Uploader(Callback):
    def __init__(self, folder, address, api_key):
        self.folder, self.address, self.api_key = folder, address, api_key


SECRETS = ("hunter2", "sk-1234", "p4ssw0rd")
COMMAND = ["train.py", "--password", "hunter2", "--store", "http://me:p4ssw0rd@host", "--lr", "0.1"]


def train(folder, **options):
    memory = InMemoryLogger()
    callback = Uploader(folder / "uploads", "http://me:p4ssw0rd@host", "sk-1234")
    make_trainer(
        callbacks=[callback], loggers=memory, save_folder=folder, max_duration="2ba", **options
    ).fit()
    return memory


def contents(folder):
    return "".join(
        path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()
    )


def test_a_run_records_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", COMMAND)
    memory = train(tmp_path)
    write_report(tmp_path, tmp_path / "report.html")

    for text in (contents(tmp_path), repr(memory.hyperparameters)):
        assert not [one for one in SECRETS if one in text]
    record = json.loads((tmp_path / "run.json").read_text())["records"][0]
    assert record["command"] == redact_command(COMMAND)
    assert record["arguments"] == redact_command(COMMAND)[1:]
    assert f"api_key={REDACTED}" in record["callbacks"]["Uploader"]


def test_a_report_of_an_older_record_shows_no_secrets(tmp_path):
    train(tmp_path)
    path = tmp_path / "run.json"
    body = json.loads(path.read_text())
    body["records"][0].update(arguments=["--password", "hunter2"], api_key="sk-1234")
    path.write_text(json.dumps(body))

    run = RecordedRun(tmp_path)

    assert run.configuration["arguments"] == ["--password", REDACTED]
    assert run.configuration["api_key"] == REDACTED


def test_the_command_is_left_out_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "something", "private"])
    memory = train(tmp_path, record_command=False)

    for text in (contents(tmp_path), repr(memory.hyperparameters)):
        assert "something" not in text


def test_absolute_paths_of_callbacks_are_no_hyperparameters(tmp_path):
    saver = CheckpointSaver(tmp_path / "saved", save_interval="1ep")
    memory = InMemoryLogger()
    trainer = make_trainer(callbacks=[saver, Uploader(Path("here/x"), "a", "b")], loggers=memory)
    trainer.fit()

    assert str(tmp_path) not in repr(memory.hyperparameters)
    assert "folder=saved" in memory.hyperparameters["callbacks"]["CheckpointSaver"]
    assert "folder=here/x" in memory.hyperparameters["callbacks"]["Uploader"]


def test_a_replay_asks_for_arguments_that_were_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", COMMAND)
    train(tmp_path)

    with pytest.raises(ReplayError, match=r"'--password'.* was not recorded; pass arguments="):
        replay_script(tmp_path, batch=1)


def test_a_replay_asks_for_the_command_that_was_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    train(tmp_path, record_command=False)

    with pytest.raises(ReplayError, match="the arguments of the script were not recorded; pass"):
        replay_script(tmp_path, batch=1)
