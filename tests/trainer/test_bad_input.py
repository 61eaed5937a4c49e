"""Each invalid argument raises an error with its name, its value, what is allowed, and a remedy."""

import re
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from composable import Callback, Evaluator, Event, Trainer, chain, during
from composable.algorithms import EMA, MixUp
from composable.callbacks import EarlyStopper
from composable.core.logger import Logger
from composable.loggers import ConsoleLogger, InMemoryLogger, JSONLinesLogger
from composable.optim import MultiOptimizer, constant, cosine
from composable.trainer.options import TrainerOptions
from tests.support.data import Stream, batches, examples
from tests.support.models import CLASSES
from tests.support.models import linear as linear_model
from tests.support.runs import make_trainer

TWO = [Evaluator("a", batches(12)), batches(12)]
TWINS = [Evaluator("a", batches(12)), Evaluator("a", batches(12))]
EMPTY = Evaluator("test", [])
OTHER_SGD = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
OTHER_STEP = StepLR(OTHER_SGD, 1)


LBFGS = partial(torch.optim.LBFGS, lr=0.1)


def halves_of(optimizer):
    """Return functions that build an optimizer of one half of the parameters, and of the other."""
    return [lambda p: optimizer([*p][:1]), lambda p: optimizer([*p][1:])]


SGD = partial(torch.optim.SGD, lr=0.1)
TWICE = [SGD, halves_of(SGD)[1]]


def endless():
    yield from batches(12)


TYPES = [
    # the model and its loss
    ({"model": nn.Linear}, r"model is the class Linear; pass an instance, Linear\(\)"),
    ({"loss_fn": nn.L1Loss}, r"loss_fn is the class L1Loss; pass an instance, L1Loss\(\)"),
    # loaders
    (
        {"train_dataloader": iter(batches(12))},
        "train_dataloader=.* is an iterator, which is exhaus",
    ),
    ({"train_dataloader": torch.zeros(3, 4)}, "train_dataloader=<a tensor>.*must be"),
    ({"train_dataloader": (b for b in batches(12))}, "train_dataloader=.* after one epoch; pass"),
    ({"train_dataloader": endless()}, "or the function that returns it"),
    (
        {"train_dataloader": {"train": [], "test": []}},
        "dictionary of 'train', 'test'; pass one of its loaders",
    ),
    *(
        ({"train_dataloader": one}, r"without arguments .* or a function \(key, step\) that")
        for one in (lambda split: 0, lambda key, step, more: 0, linear_model(), min)
    ),
    ({"eval_dataloader": iter(batches(12))}, "eval_dataloader=.* is an iterator"),
    ({"eval_dataloader": {"a": iter(())}}, "the dataloader of Evaluator 'a'=.* is an iterator"),
    ({"eval_dataloader": TWO}, "eval_dataloader mixes Evaluators with a list; pass Evaluators"),
    # algorithms, callbacks and loggers
    ({"algorithms": [MixUp]}, r"algorithms contains the class MixUp; pass an instance, MixUp\(\)"),
    ({"algorithms": [Callback()]}, r"a callback; pass it in callbacks=\[...\]"),
    ({"algorithms": [3]}, "algorithms contains 3; pass an Algorithm"),
    ({"algorithms": [lambda event, state: None]}, "apply returned None and must return a State: e"),
    ({"algorithms": InMemoryLogger()}, r"a callback; pass it in loggers=\[...\]"),
    ({"algorithms": "MixUp"}, "algorithms contains 'MixUp'; pass an Algorithm"),
    ({"callbacks": [MixUp]}, r"callbacks contains the class MixUp; pass an instance, MixUp\(\)"),
    ({"callbacks": [Logger]}, "callbacks contains the class Logger; pass an instance"),
    ({"callbacks": [3]}, "callbacks contains 3; pass a Callback, or a function"),
    ({"callbacks": [MixUp()]}, r"an algorithm; pass it in algorithms=\[...\]"),
    ({"callbacks": InMemoryLogger()}, r"a logger; pass it in loggers=\[...\]"),
    ({"callbacks": EarlyStopper}, r"the class EarlyStopper, and .* failed: .*'monitor'; pass an"),
    ({"callbacks": InMemoryLogger}, r"a logger; pass it in loggers=\[...\]"),
    ({"loggers": [Callback()]}, "loggers contains .*instance of LoggerDestination"),
    ({"loggers": Callback}, r"contains the class Callback; pass an instance, Callback\(\)"),
    ({"loggers": [JSONLinesLogger]}, r"the class JSONLinesLogger, and .*failed: .*'path'.*; pass"),
    ({"grad_accum": "auto"}, r"grad_accum='auto' .* microbatch_size='auto'"),
    ({"metrics": {"a": 3}}, r"metrics\['a'\]=3 must be a function \(outputs, tar"),
    ({"metrics": {"a": nn.L1Loss}}, r"metrics\['a'\]=<class .* must be a function"),
    ({"eval_dataloader": Evaluator("a", [0], metrics=3)}, "metrics=3 must be a mapping"),
    # optimizers and schedulers
    ({"optimizers": torch.optim.SGD}, r"class SGD: pass an instance, .*functools\.partial\(SGD, l"),
    ({"optimizers": "sgd"}, r"optimizers contains 'sgd': each must be a torch\.optim"),
    ({"optimizers": lambda p: None}, "optimizers contains <function.*returns one"),
    ({"optimizers": torch.optim.LBFGS}, "optimizers contains the class LBFGS"),
    ({"schedulers": 0.1}, "schedulers contains 0.1: each must be a schedule such as"),
    ({"schedulers": cosine}, r"pass the schedule that it returns, cosine\("),
    # checkpoints
    ({"save_folder": "runs", "save_filename": 3}, "filename=3 must be a str"),
    ({"save_folder": "runs", "save_ignore_keys": [3]}, "must be a list of patterns"),
]

VALUES = [
    # loaders
    ({"train_dataloader": []}, "train_dataloader is empty; check the dataset"),
    ({"eval_dataloader": []}, "eval_dataloader is empty"),
    ({"eval_dataloader": EMPTY}, "the dataloader of Evaluator 'test' is empty"),
    ({"eval_dataloader": TWINS}, r"Evaluators with equal labels: \['a', 'a'\]; make"),
    ({"metrics": {"loss": len}}, "'loss', under which an evaluation reports loss_fn; use another"),
    # times and numbers
    ({"eval_dataloader": Evaluator("a", [0], eval_interval="x")}, "eval_interval='x': invalid ti"),
    ({"eval_dataloader": [0], "eval_interval": "9tok"}, "eval_interval='9tok' is in tokens, which"),
    ({"log_interval": "9tok"}, "log_interval='9tok' is in tokens, which needs count_tokens"),
    ({"grad_accum": 2, "microbatch_size": 4}, "grad_accum=2 and microbatch_size=4 exclude each"),
    # algorithms
    ({"algorithms": [MixUp(), MixUp()]}, "algorithms contains two named 'MixUp'.*name="),
    ({"algorithms": EMA(ema_start="1tok")}, "the window of EMA: start='1tok' is in tokens, which"),
    ({"algorithms": during("0ep", "5tok", MixUp())}, "the window of MixUp: end='5tok' is in token"),
    ({"algorithms": chain(during("1iter", "2ep", MixUp()))}, "start='1iter' is in iterations, whi"),
    # optimizers and schedulers
    ({"optimizers": OTHER_SGD}, r"optimizers\[0\], SGD, has none of the model's parameters: build"),
    ({"optimizers": TWICE}, r"s\[0\] and optimizers\[1\] both have the param.*'bias'"),
    (
        {"optimizers": halves_of(SGD), "schedulers": partial(StepLR, step_size=1)},
        r"schedulers contains .* exactly one optimizer, got 2: p",
    ),
    ({"schedulers": OTHER_STEP}, "a StepLR whose optimizer is not one of the Trainer's: pass"),
    *(
        ({"schedulers": [cosine(), one]}, "schedulers contains Cosine.* pass schedules or PyTorch")
        for one in (partial(StepLR, step_size=1), ReduceLROnPlateau)
    ),
    *(
        ({"optimizers": LBFGS, **options}, rf"LBFGS of optimizers compares losses {message}")
        for options, message in [
            ({"precision": "amp_fp16"}, "which precision='amp_fp16' scales: use 'amp_bf16'"),
            ({"optimizers": lambda p: MultiOptimizer([LBFGS(p)])}, "which other optimizers change"),
            ({"optimizers": halves_of(LBFGS)}, "which other optimizers change: pass an Up"),
        ]
    ),
    # checkpoints
    ({"nonfinite_loss": "rollback"}, "nonfinite_loss='rollback' needs a save_folder"),
    ({"autoresume": True}, "autoresume=True needs a save_folder to look"),
    *(
        ({name: value}, rf"^{name}={value!r} needs a save_folder\.$")
        for name, value in [
            ("save_interval", None),
            ("save_num_checkpoints_to_keep", 1),
            ("save_best", "eval/loss"),
            ("save_in_background", True),
        ]
    ),
    *(
        ({"save_folder": "runs", **options}, message)
        for options, message in [
            ({"save_interval": "0ba"}, "save_interval='0ba' must be greater than 0"),
            ({"save_filename": "last"}, "must be unique for each checkpoint"),
            ({"save_filename": "{run}-{batch}"}, "no fields other than {epoch}, {batch}"),
            ({"save_filename": "a/{batch}"}, "must be a name, not a path"),
            ({"save_num_checkpoints_to_keep": 0}, "must be a positive integer"),
            ({"save_error": "ignore"}, r"on_error='ignore' must be one of \['raise', 'warn'\]"),
            ({"save_best": "metrics/"}, "such as 'metrics/eval/accuracy'"),
            ({"save_best_mode": "best"}, "mode='best' must be 'min', 'max' or None"),
            ({"autoresume": True, "save_weights_only": True}, "only a complete checkpoint can be"),
        ]
    ),
]


ROWS = {TypeError: TYPES, ValueError: VALUES}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [(given, error, message) for error, rows in ROWS.items() for given, message in rows],
)
def test_invalid_arguments_are_rejected_with_a_remedy(given, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(error, match=message):
        make_trainer(**given)


FLAGS = [
    f.name
    for f in attrs.fields(TrainerOptions)
    if f.init and isinstance(f.default, bool) and f.name != "compile"  # it also takes options
]


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name, value, tmp_path):
    own = name.removeprefix("save_").removeprefix("in_")

    with pytest.raises(TypeError, match=rf"{own}={value!r} must be True or False"):
        make_trainer(**{"save_folder": tmp_path, name: value})


CUDA = [] if torch.cuda.is_available() else ["cuda", "cuda:1"]
NPUS = ["mps", "xpu:1"]
ABSENT = "is not available: this PyTorch .* finds no"


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        *((one, f"{ABSENT} .*use 'cpu', or inst") for one in CUDA),
        *((one, f"{ABSENT} accelerator; use 'cpu'") for one in NPUS),
        ("gpu0", "must be 'cpu', 'cuda', 'cuda:1', 'mps', 'x"),
    ],
)
def test_device_that_is_absent_is_rejected(device, reason, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device='{device}' {reason}"):
        make_trainer(device=device)


# --- what fit, eval and predict need ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_dataloader": None}, "fit needs train_dataloader; pass it to the Trainer"),
        ({"optimizers": None}, "fit needs optimizers; pass it to the Trainer"),
        ({"max_duration": None}, "fit needs max_duration; pass it to the Trainer"),
        ({"max_duration": "2iter"}, "max_duration='2iter' is in iterations, which needs"),
        ({"max_duration": "100tok"}, "max_duration='100tok' is in tokens, which needs"),
        ({"loss_fn": None}, r"a loss; pass loss_fn, or give Linear a method loss\(outputs, batch"),
        ({"schedulers": ReduceLROnPlateau}, r"a ReduceLROnPlateau.*eval_dataloader"),
        (
            {"schedulers": ReduceLROnPlateau, "eval_dataloader": [0], "eval_interval": None},
            "and an eval_interval such as '1ep'",
        ),
    ],
)
def test_fit_names_the_missing_argument(options, message):
    trainer = make_trainer(**options)

    with pytest.raises(ValueError, match=message):
        trainer.fit()


def test_fit_after_the_end_tells_how_to_train_for_longer():
    trainer = make_trainer()
    trainer.fit()

    with pytest.raises(ValueError, match=r"='2ep' is reached, at <State .*; call fit\(duration="):
        trainer.fit()


@pytest.mark.parametrize(
    ("duration", "error", "message"),
    [
        ("soon", ValueError, "duration='soon'.*invalid time 'soon'"),
        (1.5, TypeError, "duration=1.5"),
        ("0ba", ValueError, "duration='0ba' must be greater than 0"),
        ("0.5dur", ValueError, "duration='0.5dur' must be in epochs, batches"),
        ("1iter", ValueError, "is in iterations, which needs iteration_length, such as '2ep'"),
    ],
)
def test_duration_is_validated(duration, error, message):
    trainer = make_trainer()

    with pytest.raises(error, match=rf"(?<!max_){message}"):
        trainer.fit(duration=duration)


@pytest.mark.parametrize("action", ["predict", "eval"])
@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        (3, TypeError, "dataloader=3 must be an iterable of batches"),
        ([], ValueError, "dataloader is empty"),
        (iter(batches(12)), TypeError, "dataloader=.* is an iterator"),
    ],
)
def test_predict_and_eval_validate_their_loader(action, loader, error, message):
    with pytest.raises(error, match=message):
        getattr(make_trainer(), action)(loader)


def test_predict_needs_the_model_alone_and_eval_a_dataloader():
    trainer = Trainer(linear_model(), device="cpu", progress_bar=False)

    assert trainer.predict([torch.zeros(2, 4)])[0].shape == (2, CLASSES)
    with pytest.raises(ValueError, match="eval needs an eval_dataloader; pass one here or to"):
        trainer.eval()


# --- errors during training ---


class Once:
    """An iterable that yields batches the first time only."""

    def __init__(self):
        self.left = batches(12)

    def __iter__(self):
        left, self.left = self.left, []
        return iter(left)


def assigns(event, state):
    if event is Event.BATCH_START:
        state.batch = None
    return state


def log_a_vector(event, state, logger):
    logger.log_metrics({"grad": torch.zeros(3)})


INPUTS, LABELS = examples(8)[0], torch.arange(8) % CLASSES
EACH = partial(cross_entropy, reduction="none")
NO_COUNT = "count_tokens returned .* must return a nonnegative integer"
NO_KEY = {"input_key": "x", "target_key": "label"}
TRAINING = [
    # the data
    ({"train_dataloader": Stream([])}, ValueError, "returned no batch in epoch 0; check the data"),
    ({"train_dataloader": Once()}, ValueError, "train_dataloader returned no batch in epoch 1; c"),
    ({"eval_dataloader": {"a": Stream([])}}, ValueError, "Evaluator 'a' returned no batch; check"),
    (
        {"train_dataloader": (INPUTS, LABELS)},
        ValueError,
        r"a list of one pair, \[\(inputs, targets\)\]",
    ),
    ({"train_dataloader": [{"x": INPUTS}]}, ValueError, "input_key=0 is not in .* is a dict with"),
    ({"train_dataloader": [{"x": INPUTS}], **NO_KEY}, ValueError, "_key='label' is not .*Pass"),
    ({"train_dataloader": [("a", "b")]}, ValueError, "inputs is a str, .* Check input_key"),
    (
        {"train_dataloader": [(INPUTS, LABELS[:3])], "grad_accum": 2},
        ValueError,
        r"batch\[1\] has 3 rows and the input has 8 examples.*train without grad_accum and",
    ),
    # the loss
    *(
        ({"loss_fn": EACH, **split}, ValueError, r"loss_fn returned a tensor of shape \((4|2),\) ")
        for split in ({}, {"grad_accum": 2})
    ),
    ({"loss_fn": lambda o, t: 0.5}, TypeError, "loss_fn returned float and must return a tensor"),
    ({"loss_fn": lambda o, t: o.detach().sum()}, ValueError, "without a gradient.*not detached"),
    # functions that count, and schedules
    *(
        ({"count_tokens": lambda batch, count=count: count}, ValueError, NO_COUNT)
        for count in (2.5, torch.tensor(-1), torch.ones(2))
    ),
    (
        {"loss_mean_over": lambda batch: None, "grad_accum": 2},
        TypeError,
        "loss_mean_over returned None and must return",
    ),
    ({"schedulers": lambda clock: "fast"}, TypeError, "which returned 'fast' instead of a number"),
    (
        {"train_dataloader": Stream(batches(12)), "schedulers": constant(warmup="1ep")},
        ValueError,
        r"warmup='1ep' .* with a loader that has a length",
    ),
    # algorithms and callbacks
    ({"algorithms": [assigns]}, AttributeError, r"Return state\.evolve\(batch=\.\.\.\)"),
    (
        {"callbacks": [log_a_vector], "loggers": [ConsoleLogger("1ba")]},
        ValueError,
        "metric 'grad' has 3 elements and must have one",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), TRAINING)
def test_errors_during_training_describe_the_remedy(options, error, message):
    with pytest.raises(error, match=message):
        make_trainer(**options).fit()


# --- what is passed to the model and to functions ---


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, CLASSES)),
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, CLASSES)),
        lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(192), nn.Linear(192, CLASSES)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES)),
    ],
)
@pytest.mark.parametrize("call", ["fit", "eval", "predict"])
def test_images_of_uint8_that_reach_the_model_name_the_place_to_normalize(model, call):
    data = [(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4).long())]
    trainer = make_trainer(model(), data, eval_dataloader=data, eval_interval=None)

    with pytest.raises(RuntimeError) as caught:
        getattr(trainer, call)(*([data] if call == "predict" else []))

    assert any("Convert and normalize it in the dataset" in n for n in caught.value.__notes__)


class Unpacked(nn.Linear):
    """A model that takes its inputs, and defines a loss: it gets the whole batch."""

    def loss(self, outputs, batch):
        return outputs.mean()


@pytest.mark.parametrize(
    ("model", "options", "note"),
    [
        (nn.Linear, {"optimizers": lambda m: torch.optim.SGD(m.parameters())}, "and not the model"),
        (nn.Linear, {"optimizers": lambda: 1}, "raised by a function in optimizers"),
        (nn.Linear, {"schedulers": StepLR}, r"partial\(StepLR, \.\.\.\)"),
        (Unpacked, {"loss_fn": None}, "called with the whole batch, here a tuple"),
    ],
)
def test_note_on_an_error_of_a_call_says_what_is_passed(model, options, note):
    with pytest.raises((AttributeError, TypeError)) as caught:
        make_trainer(
            model(4, CLASSES), [(torch.zeros(2, 4), torch.zeros(2).long())], **options
        ).fit()

    assert re.search(note, "\n".join(caught.value.__notes__))


# --- errors about the data of a first run ---


def fit(batch, loss_fn=cross_entropy, **options):
    make_trainer(**{"train_dataloader": [batch], "loss_fn": loss_fn, **options}).fit()


def told(error):
    """Return all that an error prints; on Python 3.10 its notes are in its message."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize(
    ("batch", "advice"),
    [
        ((INPUTS, LABELS.float()), r"targets of shape \(8,\) of torch.float32. .* labels.long\(\)"),
        ((INPUTS, LABELS.int()), r"of torch.int32. .* return labels.long\(\)"),
        ((INPUTS, LABELS[:, None]), r"targets of shape \(8, 1\) .* return labels.squeeze\(1\)"),
        ((INPUTS, LABELS + 1), "labels are from 1 to 3, and the model has 3 outputs: number the c"),
        ((INPUTS, LABELS - 1), "labels are from -1 to 1, and the model has 3 outputs"),
        ((INPUTS, LABELS[:7]), r"outputs of shape \(8, 3\) .* and targets of shape \(7,\)"),
        ((INPUTS.double(), LABELS), r"a tensor of torch.float64, and the .* inputs.float\(\)"),
        (
            (INPUTS.half(), LABELS.byte()),
            "a tensor of torch.float16, and the weights are of torch.f",
        ),
        (((255 * INPUTS).byte(), LABELS), "a tensor of uint8, as images are stored"),
        ((INPUTS.numpy(), LABELS.numpy()), r"torch.from_numpy\(array\)"),
        ((INPUTS[:, :3], LABELS), "^mat1 and mat2 shapes cannot be multiplied [^\n]*$"),
    ],
)
def test_an_error_about_the_data_says_what_to_change(batch, advice):
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        fit(batch)

    assert re.search(advice, told(caught.value))


def squared_error(outputs, targets):
    return (outputs - targets).square().mean()


BINARY = nn.BCEWithLogitsLoss()


@pytest.mark.parametrize(
    ("loss_fn", "outputs", "targets", "advice"),
    [
        (BINARY, 1, LABELS.float(), r"return labels\[:, None\]\.$"),
        (BINARY, 3, nn.functional.one_hot(LABELS, 3), r"return labels.float\(\)\.$"),
        (BINARY, 3, torch.zeros(8, 2), r"targets of shape \(8, 2\) of torch.float32\.$"),
        (squared_error, 3, torch.zeros(8, 4), r"targets of shape \(8, 4\) of torch.float32\.$"),
    ],
)
def test_an_error_of_targets_without_classes_says_what_to_change(loss_fn, outputs, targets, advice):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        fit((INPUTS, targets), loss_fn, model=nn.Linear(4, outputs))

    assert re.search(advice, told(caught.value))


def test_an_error_of_the_loss_keeps_its_class_and_its_message():
    def loss_fn(outputs, targets):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine") as caught:
        fit((INPUTS, LABELS), loss_fn)

    assert "return labels" not in told(caught.value)
