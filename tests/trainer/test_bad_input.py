"""Every mistake is answered: which argument, what it was, what is allowed, what to do."""

from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Algorithm, Callback, Evaluator, Event, Trainer
from composable.algorithms import MixUp
from composable.loggers import ConsoleLogger, InMemoryLogger
from composable.optim import cosine
from tests.support.tiny import CLASSES, batches, linear, make_trainer

CUDA = torch.cuda.is_available()


class Shapeless:
    pass


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        # The model and its loss
        ({"model": 3}, TypeError, r"model=3 must be a torch\.nn\.Module"),
        (
            {"model": nn.Linear},
            TypeError,
            r"model is the class Linear; pass an instance, Linear\(\)",
        ),
        ({"loss_fn": 3}, TypeError, r"loss_fn=3 must be a function \(outputs, targets\)"),
        (
            {"loss_fn": nn.CrossEntropyLoss},
            TypeError,
            r"loss_fn is the class CrossEntropyLoss; pass an instance, CrossEntropyLoss\(\)",
        ),
        (
            {"loss_mean_over": "words"},
            ValueError,
            "loss_mean_over='words' must be 'examples', 't",
        ),
        ({"loss_mean_over": 3}, ValueError, "loss_mean_over=3 must be 'examples', 'tokens'"),
        ({"count_tokens": 3}, TypeError, "count_tokens=3 must be a function"),
        # Loaders
        (
            {"train_dataloader": 3},
            TypeError,
            "train_dataloader=3 must be an iterable of batches",
        ),
        (
            {"train_dataloader": "mnist"},
            TypeError,
            "train_dataloader='mnist' must be an iterable",
        ),
        (
            {"train_dataloader": torch.zeros(3, 4)},
            TypeError,
            "train_dataloader=<a tensor> must be an iterable of batches",
        ),
        ({"progress_bar": "no"}, TypeError, "progress_bar='no' must be True or False"),
        (
            {"step_schedulers_every_batch": 1},
            TypeError,
            "step_schedulers_every_batch=1 must be True or False",
        ),
        (
            {"log_interval": "1iter"},
            ValueError,
            "log_interval='1iter' must not be in iterations; use epochs, batches",
        ),
        (
            {"log_interval": "9tok"},
            ValueError,
            "log_interval='9tok' is in tokens, which needs count_tokens; pass a function",
        ),
        (
            {"eval_dataloader": batches(), "eval_interval": "9tok"},
            ValueError,
            "eval_interval='9tok' is in tokens, which needs count_tokens; pass a function",
        ),
        (
            {"eval_dataloader": [Evaluator("a", batches()), batches()]},
            TypeError,
            "eval_dataloader mixes Evaluators with a list; pass Evaluators only",
        ),
        (
            {"metrics": {"loss": len}},
            ValueError,
            "metrics has 'loss', under which an evaluation reports loss_fn; use another name",
        ),
        ({"train_dataloader": []}, ValueError, "train_dataloader is empty; check the dataset"),
        (
            {"train_dataloader": iter(batches())},
            TypeError,
            "train_dataloader=.* is an iterator, which is exhausted after one epoch; pass",
        ),
        (
            {"train_dataloader": (b for b in batches())},
            TypeError,
            "train_dataloader=.* is an iterator, which is exhausted after one epoch; pass",
        ),
        ({"eval_dataloader": 3}, TypeError, "eval_dataloader=3 must be an iterable of batches"),
        ({"eval_dataloader": []}, ValueError, "eval_dataloader is empty"),
        ({"eval_dataloader": iter(batches())}, TypeError, "eval_dataloader=.* is an iterator"),
        (
            {"eval_dataloader": Evaluator("test", [])},
            ValueError,
            "the dataloader of Evaluator 'test' is empty",
        ),
        (
            {"eval_dataloader": {"test": iter(batches())}},
            TypeError,
            "the dataloader of Evaluator 'test'=.* is an iterator",
        ),
        (
            {"eval_dataloader": [Evaluator("a", batches()), batches()]},
            TypeError,
            "eval_dataloader mixes Evaluators with",
        ),
        (
            {"eval_dataloader": [Evaluator("a", batches()), Evaluator("a", batches())]},
            ValueError,
            r"eval_dataloader has Evaluators with equal labels: \['a', 'a'\]; make",
        ),
        # Parts of a batch
        ({"input_key": None}, TypeError, r"input_key=None must be an index \(0\), a name"),
        ({"target_key": 1.5}, TypeError, r"target_key=1\.5 must be an index \(0\), a name"),
        # Times
        ({"max_duration": "soon"}, ValueError, "max_duration='soon': invalid time 'soon'.*'10ep'"),
        ({"max_duration": "10"}, ValueError, "max_duration='10'.*invalid time '10': .*'10ep'"),
        ({"max_duration": "-1ep"}, ValueError, "max_duration='-1ep'.*invalid time '-1ep'"),
        ({"max_duration": -1}, ValueError, "max_duration=-1.*is negative"),
        ({"max_duration": 1.5}, TypeError, "max_duration=1.5.*'10ep'"),
        ({"max_duration": True}, TypeError, "max_duration=True.*'10ep'"),
        ({"max_duration": 0}, ValueError, "max_duration='0ep' must be greater than 0"),
        (
            {"max_duration": "1dur"},
            ValueError,
            "max_duration='1dur' must not be a fraction of the run; use epochs, batches",
        ),
        ({"eval_interval": "soon"}, ValueError, "eval_interval='soon'.*invalid time"),
        ({"eval_interval": 0}, ValueError, "eval_interval=0 must be greater than 0; None"),
        ({"eval_interval": 1.5}, TypeError, "eval_interval=1.5.*'10ep'"),
        ({"log_interval": "often"}, ValueError, "log_interval='often'.*invalid time 'often'"),
        ({"log_interval": None}, TypeError, "log_interval=None.*'10ep'"),
        ({"log_interval": "0ba"}, ValueError, "log_interval='0ba' must be greater than 0"),
        ({"iteration_length": "soon"}, ValueError, "iteration_length='soon'.*invalid time"),
        (
            {"iteration_length": "2ba"},
            ValueError,
            "iteration_length='2ba' must be a positive number of epochs, such as '2ep'",
        ),
        (
            {"iteration_length": 0},
            ValueError,
            "iteration_length=0 must be a positive number of epochs, such as '2ep'",
        ),
        # Numbers
        ({"grad_accum": 0}, ValueError, "grad_accum=0 must be at least 1"),
        ({"grad_accum": 2.0}, TypeError, "grad_accum=2.0 must be a positive integer"),
        ({"grad_accum": True}, TypeError, "grad_accum=True must be a positive integer"),
        ({"microbatch_size": -1}, ValueError, "microbatch_size=-1 must be at least 1"),
        (
            {"microbatch_size": "4"},
            TypeError,
            "microbatch_size='4' must be a positive integer or 'auto'",
        ),
        (
            {"grad_accum": 2, "microbatch_size": 4},
            ValueError,
            "grad_accum=2 and microbatch_size=4 exclude each other; pass the number",
        ),
        ({"seed": -1}, ValueError, r"seed=-1 is out of range: use 0 to 2\*\*64 - 1"),
        ({"seed": 1.5}, TypeError, "seed=1.5 must be an integer"),
        ({"seed": "17"}, TypeError, "seed='17' must be an integer"),
        # Devices
        (
            {"device": "tpu"},
            ValueError,
            "device='tpu' must be 'cpu', 'cuda' or 'cuda:1'",
        ),
        ({"device": "meta"}, ValueError, "device='meta' must be 'cpu', 'cuda' or 'cuda:1'"),
        ({"device": 1.5}, ValueError, "device=1.5 must be 'cpu', 'cuda' or 'cuda:1'"),
        *(
            [
                (
                    ({"device": "cuda"}),
                    ValueError,
                    "device='cuda' is not available: .*use 'cpu', or install",
                )
            ]
            if not CUDA
            else []
        ),
        # What changes and what watches
        (
            {"algorithms": [MixUp]},
            TypeError,
            r"algorithms contains the class MixUp; pass an instance, MixUp\(\)",
        ),
        ({"algorithms": [Callback()]}, TypeError, r"a callback; pass it in callbacks=\[...\]"),
        ({"algorithms": [3]}, TypeError, "algorithms contains 3; pass an Algorithm"),
        (
            {"algorithms": [MixUp(), MixUp()]},
            ValueError,
            "algorithms contains two named 'MixUp'.*name=",
        ),
        ({"callbacks": [MixUp()]}, TypeError, r"an algorithm; pass it in algorithms=\[...\]"),
        ({"callbacks": InMemoryLogger()}, TypeError, r"a logger; pass it in loggers=\[...\]"),
        ({"callbacks": Callback}, TypeError, r"the class Callback; pass an instance, Callback\(\)"),
        ({"loggers": [Callback()]}, TypeError, "loggers contains .*instance of LoggerDestination"),
        ({"loggers": InMemoryLogger}, TypeError, r"pass an instance, InMemoryLogger\(\)"),
        ({"saver": "checkpoints"}, TypeError, "saver='checkpoints' must be a function"),
        # Metrics
        ({"metrics": ["accuracy"]}, TypeError, r"metrics=\['accuracy'\] must be a mapping"),
        (
            {"metrics": lambda o, t: 0},
            TypeError,
            "metrics=<function.* must be a mapping of names",
        ),
        (
            {"metrics": {"a": 3}},
            TypeError,
            r"metrics\['a'\]=3 must be a function \(outputs, tar",
        ),
        (
            {"metrics": {"a": nn.L1Loss}},
            TypeError,
            r"metrics\['a'\]=<class .* must be a function",
        ),
        # Optimizers and schedules
        (
            {"optimizers": torch.optim.SGD},
            TypeError,
            r"optimizers contains the class SGD: pass an instance, .*functools\.partial\(SGD, lr=",
        ),
        (
            {"optimizers": "sgd"},
            TypeError,
            r"optimizers contains 'sgd': each must be a torch\.optim",
        ),
        ({"optimizers": 0.1}, TypeError, "optimizers contains 0.1: each must be"),
        ({"optimizers": lambda p: None}, TypeError, "optimizers contains <function.*returns one"),
        (
            {"optimizers": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)},
            ValueError,
            r"optimizers\[0\], SGD, has none of the model's parameters: build it",
        ),
        (
            {"optimizers": partial(torch.optim.LBFGS)},
            TypeError,
            "optimizers contains an LBFGS.*closure",
        ),
        (
            {"schedulers": 0.1},
            TypeError,
            "schedulers contains 0.1: each must be a schedule such as",
        ),
        (
            {
                "schedulers": torch.optim.lr_scheduler.StepLR(
                    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), 1
                )
            },
            ValueError,
            "schedulers contains a StepLR whose optimizer is not one of the Trainer's: pass",
        ),
        # Names that don't exist
        ({"max_epochs": 3}, TypeError, "got an unexpected argument 'max_epochs'"),
    ],
)
def test_an_error_about_an_argument_says_what_to_pass(given, error, message):
    with pytest.raises(error, match=message):
        make_trainer(**given)


def test_a_parameter_in_two_optimizers_is_named():
    model = linear()
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.optim.Adam([model.bias]),
    ]

    with pytest.raises(
        ValueError, match=r"optimizers\[0\] and optimizers\[1\] both have the parameter 'bias'"
    ):
        make_trainer(model, optimizers=optimizers)


def test_a_scheduler_to_be_built_needs_one_optimizer():
    model = linear()
    optimizers = [
        torch.optim.SGD([model.weight], lr=0.1),
        torch.optim.SGD([model.bias], lr=0.1),
    ]
    scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=1)

    with pytest.raises(
        ValueError, match=r"schedulers contains .* exactly one optimizer, got 2: pass"
    ):
        make_trainer(model, optimizers=optimizers, schedulers=scheduler)


@pytest.mark.skipif(CUDA, reason="is about machines without CUDA")
def test_cuda_without_a_cuda_device_is_an_error():
    with pytest.raises(
        ValueError, match=r"device='cuda:1' is not available: this PyTorch .* finds no"
    ):
        make_trainer(device="cuda:1")


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("train_dataloader", "fit needs train_dataloader; pass it to the Trainer"),
        ("optimizers", "fit needs optimizers; pass it to the Trainer"),
        ("max_duration", "fit needs max_duration; pass it to the Trainer"),
        (
            "loss_fn",
            r"fit needs a loss; pass loss_fn, or give Linear a method loss\(outputs, batch",
        ),
    ],
)
def test_fit_names_the_argument_that_is_missing(absent, message):
    trainer = make_trainer(**{absent: None})

    with pytest.raises(ValueError, match=message):
        trainer.fit()


def test_a_trainer_needs_a_model_alone_until_it_is_asked_to_train():
    trainer = Trainer(linear(), device="cpu", progress_bar=False)

    assert trainer.predict([torch.zeros(2, 4)])[0].shape == (2, CLASSES)


def test_fit_after_the_end_says_how_to_train_for_longer():
    trainer = make_trainer()
    trainer.fit()

    with pytest.raises(
        ValueError, match=r"max_duration='2ep' is reached, at <State .*; call fit\(duration="
    ):
        trainer.fit()


@pytest.mark.parametrize(
    ("duration", "error", "message"),
    [
        ("soon", ValueError, "duration='soon'.*invalid time 'soon'"),
        (1.5, TypeError, "duration=1.5"),
        ("0ba", ValueError, "duration='0ba' must be greater than 0"),
        ("0.5dur", ValueError, "duration='0.5dur' must not be a fraction of the run"),
        ("1iter", ValueError, "is in iterations, which needs iteration_length, such as '2ep'"),
    ],
)
def test_a_duration_is_checked_as_a_length_of_training_is(duration, error, message):
    trainer = make_trainer()

    with pytest.raises(error, match=rf"(?<!max_){message}"):
        trainer.fit(duration=duration)


def test_iterations_need_a_length():
    with pytest.raises(ValueError, match="max_duration='2iter' is in iterations, which needs"):
        make_trainer(max_duration="2iter").fit()


def test_a_plateau_needs_an_evaluation():
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau

    with pytest.raises(ValueError, match=r"a ReduceLROnPlateau.*eval_dataloader"):
        make_trainer(schedulers=partial(plateau)).fit()


def test_there_must_be_something_to_evaluate_on():
    with pytest.raises(ValueError, match="eval needs an eval_dataloader; pass one here or to"):
        make_trainer().eval()


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        (3, TypeError, "dataloader=3 must be an iterable of batches"),
        ([], ValueError, "dataloader is empty"),
        (iter(batches()), TypeError, "dataloader=.* is an iterator"),
    ],
)
def test_predict_and_eval_check_their_loader(loader, error, message):
    with pytest.raises(error, match=message):
        make_trainer().predict(loader)
    with pytest.raises(error, match=message):
        make_trainer().eval(loader)


# What only shows while training


class Silent:
    """An iterable without a length that yields nothing."""

    def __iter__(self):
        return iter(())


class Once:
    """An iterable that yields batches the first time only."""

    def __init__(self):
        self.left = batches()

    def __iter__(self):
        left, self.left = self.left, []
        return iter(left)


@pytest.mark.parametrize(("loader", "epoch"), [(Silent(), 0), (Once(), 1)])
def test_an_epoch_without_a_batch_is_an_error(loader, epoch):
    with pytest.raises(
        ValueError, match=f"train_dataloader returned no batch in epoch {epoch}; check the dataset"
    ):
        make_trainer(train_dataloader=loader).fit()


def test_an_evaluation_without_a_batch_is_an_error():
    with pytest.raises(ValueError, match="Evaluator 'test' returned no batch; check the dataset"):
        make_trainer().eval({"test": Silent()})


@pytest.mark.parametrize(
    ("batch", "changes", "message"),
    [
        (
            {"x": torch.zeros(4, 4)},
            {},
            "input_key=0 is not in the batch, which is a dict with t",
        ),
        (
            {"x": torch.zeros(4, 4)},
            {"input_key": "x", "target_key": "label"},
            "target_key='label' is not in the batch, .*Pass the target_key",
        ),
        (Shapeless(), {}, "input_key=0 is not in the batch, which is a Shapeless"),
        (("a", "b"), {}, "examples of the batch cannot be counted: its input is a str"),
        (
            (torch.zeros(4, 4), torch.zeros(3, dtype=torch.long)),
            {"grad_accum": 2},
            r"batch\[1\] has 3 rows and the input has 4 examples.*train without grad_accum and",
        ),
    ],
)
def test_a_batch_that_can_not_be_read_or_split_is_described(batch, changes, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(train_dataloader=[batch], **changes).fit()


@pytest.mark.parametrize(
    ("loss_fn", "error", "message"),
    [
        (
            partial(cross_entropy, reduction="none"),
            ValueError,
            r"loss_fn returned a tensor of shape \(4,\) .*such as loss\.mean\(\)",
        ),
        (lambda o, t: 0.5, TypeError, "loss_fn returned float and must return a tensor"),
        (lambda o, t: None, TypeError, "loss_fn returned NoneType and must return a tensor"),
        (lambda o, t: {"loss": o.sum()}, TypeError, "loss_fn returned dict and must return a"),
        (
            lambda o, t: o.detach().sum(),
            ValueError,
            "loss_fn returned a loss without a gradient.*outputs are not detached",
        ),
    ],
)
def test_a_loss_that_can_not_be_trained_on_is_refused(loss_fn, error, message):
    with pytest.raises(error, match=message):
        make_trainer(loss_fn=loss_fn).fit()


def test_an_algorithm_that_returns_nothing_is_told_what_to_return():
    def forgets(event, state):
        state.evolve(loss=None)

    with pytest.raises(TypeError, match="apply returned None and must return a State: end it with"):
        make_trainer(algorithms=[forgets])


def test_a_callback_that_returns_true_is_told_what_to_return():
    class Wrong(Callback):
        def batch_end(self, state, logger):
            return True

    with pytest.raises(TypeError, match="a callback returned True and must return None or a Contr"):
        make_trainer(callbacks=[Wrong()]).fit()


def test_an_algorithm_that_assigns_to_the_state_is_told_what_to_write():
    def assigns(event, state):
        if event is Event.BATCH_START:
            state.batch = None
        return state

    with pytest.raises(AttributeError, match=r"Return state\.evolve\(batch=\.\.\.\)"):
        make_trainer(algorithms=[assigns]).fit()


def test_a_metric_of_several_values_is_refused():
    with pytest.raises(ValueError, match="metric 'grad' has 3 elements and must have one"):
        make_trainer(
            loggers=[ConsoleLogger("1ba")],
            callbacks=[lambda e, s, logger: logger.log_metrics({"grad": torch.zeros(3)})],
        ).fit()


def test_the_arguments_of_an_evaluator_are_checked():
    with pytest.raises(TypeError, match="label"):
        Evaluator(3, batches())
    with pytest.raises(TypeError, match=r"metrics=3 must be a mapping"):
        make_trainer(eval_dataloader=Evaluator("a", batches(), metrics=3))
    with pytest.raises(ValueError, match="eval_interval='x': invalid time 'x'"):
        make_trainer(eval_dataloader=Evaluator("a", batches(), eval_interval="x"))


def test_tokens_as_a_length_need_to_be_counted():
    with pytest.raises(ValueError, match="max_duration='100tok' is in tokens, which needs"):
        make_trainer(max_duration="100tok").fit()


@pytest.mark.parametrize("count", [2.5, -1, None, torch.tensor(-1), torch.ones(2)])
def test_a_count_of_tokens_is_a_nonnegative_integer(count):
    trainer = make_trainer(count_tokens=lambda batch: count)

    with pytest.raises(
        ValueError, match=r"count_tokens returned .* must return a nonnegative integer"
    ):
        trainer.fit()


def test_a_count_of_examples_is_a_number():
    trainer = make_trainer(loss_mean_over=lambda batch: None, grad_accum=2)

    with pytest.raises(TypeError, match="loss_mean_over returned None and must return"):
        trainer.fit()


def test_an_evaluator_has_a_name():
    with pytest.raises(
        TypeError, match=r"label=3 must be a non-empty str, as in Evaluator\('test', dataloader"
    ):
        Evaluator(3, batches())


@pytest.mark.parametrize(
    "scheduler",
    [
        partial(torch.optim.lr_scheduler.StepLR, step_size=1),
        partial(torch.optim.lr_scheduler.ReduceLROnPlateau),
    ],
)
def test_a_schedule_and_a_torch_scheduler_do_not_go_together(scheduler):
    with pytest.raises(ValueError, match=r"schedulers contains Cosine.* pass schedules or PyTorch"):
        make_trainer(schedulers=[cosine(), scheduler])


def test_a_schedule_that_was_not_made_is_refused():
    with pytest.raises(TypeError, match=r"pass the schedule that it returns, cosine\(\)"):
        make_trainer(schedulers=cosine)


def test_a_schedule_gives_a_number():
    with pytest.raises(TypeError, match=r"which returned 'fast' instead of a number"):
        make_trainer(schedulers=lambda clock: "fast").fit()


def test_a_plateau_needs_an_evaluation_that_is_due():
    trainer = make_trainer(
        schedulers=torch.optim.lr_scheduler.ReduceLROnPlateau,
        eval_dataloader=batches(),
        eval_interval=None,
    )

    with pytest.raises(ValueError, match="and an eval_interval such as '1ep'"):
        trainer.fit()


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        ("events", {"batch_end"}, r"Odd.events contains \{'batch_end'\} and must be a set of"),
        ("events", "batch_end", r"Odd.events is 'batch_end' and must be a set of members of Event"),
        ("writes", {"weights"}, r"Odd.writes contains \{'weights'\} and must be a set of fields"),
        ("reads", {"weights"}, r"Odd.reads contains \{'weights'\} and must be a set of fields"),
    ],
)
def test_what_an_algorithm_declares_is_checked(declared, given, message):
    odd = attrs.frozen(type("Odd", (Algorithm,), {declared: given}))

    with pytest.raises(TypeError, match=message):
        make_trainer(algorithms=odd())
