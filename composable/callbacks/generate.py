"""Log texts that a language model generates."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from composable._support.printable import shorten
from composable.batches.model_call import is_transformers_model
from composable.callbacks._intervals import UsesEvaluatedModel
from composable.core.evaluation_mode import evaluation_mode
from composable.core.intervals import IntervalLike
from composable.core.logger import Logger
from composable.core.state import State
from composable.distributed import Processes
from composable.functional import with_tensors
from composable.utils.reproducibility import preserve_rng, seed_step


class Generate(UsesEvaluatedModel):
    """Logs the continuations of prompts, as the table `samples`.

    The model must have a method `generate`, as in Transformers. It generates in evaluation mode,
    with the weights that an evaluation would measure at that moment, such as the averages of `EMA`.
    Training is not changed: the random generators are restored. Its draws depend on the seed of the
    run and on the batch alone. With several processes, rank 0 generates; a model whose parameters
    are divided among them, as by FSDP, is refused.

    Args:
        prompts: Texts; or token ids, as a tensor [prompts, tokens] or a list of tensors [tokens].
        interval: When to generate: "1ep", "500ba", a function `(state, event) -> bool`, or None for
            never.
        tokenizer: An object with `encode` and `decode`, such as a tokenizer of Transformers.
            Without one, token ids are logged.
        options: Further arguments of `generate`, such as `max_new_tokens=50, do_sample=True`.

    Raises:
        ValueError: A prompt is neither a text nor token ids, or has no token; or it is a text, and
            there is no tokenizer. In `fit`: the parameters are divided among processes.
        TypeError: The tokenizer has not these methods. In `fit`: the model has no `generate`.

    Example:
        >>> from composable.callbacks import Generate
        >>> samples = Generate(torch.tensor([[5, 3, 8]]), "1ep", max_new_tokens=20)
        >>> samples.options
        {'max_new_tokens': 20}
    """

    def __init__(
        self,
        prompts: Sequence[str] | Sequence[Tensor] | Tensor,
        interval: IntervalLike = "1ep",
        *,
        tokenizer: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(interval)
        if tokenizer is not None and not hasattr(tokenizer, "encode"):
            raise TypeError(
                f"tokenizer={shorten(tokenizer)} must have a method encode, and one decode, such "
                "as AutoTokenizer.from_pretrained(name)."
            )
        if not isinstance(prompts, (list, tuple, Tensor)) or not len(prompts):
            raise ValueError(f"prompts={shorten(prompts)} must be a list of texts or token ids.")
        self._tokenizer, self.options = tokenizer, options
        self._prompts = [self._encoded(i, prompt) for i, prompt in enumerate(prompts)]

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that the model is whole, and has a method `generate`."""
        super().fit_start(state, logger)
        self._generator(state.model)

    def _act(self, state: State, logger: Logger) -> None:
        if not (logger.destinations and Processes.current().is_main):
            return
        model = with_tensors(self._evaluated(state), {})  # a call may write to buffers
        with (
            preserve_rng(),
            evaluation_mode(model),
            state.precision.autocast(state.device),
        ):
            seed_step(state.key.fold("generate"), state.timestamp.batch)
            rows = list(self._samples(self._generator(model), state.device))
        logger.log_table("samples", ("prompt", "text"), rows)

    def _samples(self, generator: Any, device: torch.device) -> Iterator[tuple[str, str]]:
        for text, tokens in self._prompts:
            batch = tokens.to(device)[None]
            known = {"attention_mask": torch.ones_like(batch)}
            options = known if is_transformers_model(generator) else {}
            found = generator.generate(batch, **{**options, **self.options})
            for row in getattr(found, "sequences", found).cpu():
                continues = torch.equal(row[: len(tokens)], tokens)  # not for a decoder alone
                yield text, self._decoded(row[len(tokens) :] if continues else row)

    def _generator(self, model: Any) -> Any:
        """Return the model with `generate`: the given one, or a model of Transformers inside it."""
        for one in (model, getattr(model, "model", None)):
            if callable(getattr(one, "generate", None)):
                return one
        raise TypeError(
            f"Generate needs a model with a method generate, and {type(model).__name__} has none; "
            "add generate(tokens, **options), which returns token ids [rows, tokens]."
        )

    # --- texts and token ids ---

    def _encoded(self, i: int, prompt: Any) -> tuple[str, Tensor]:
        """Return a prompt as a text and as token ids."""
        tokens, is_text = prompt, isinstance(prompt, str)
        if is_text and self._tokenizer is None:
            raise ValueError(
                f"prompts[{i}]={shorten(prompt)} is a text, and Generate has no tokenizer; pass "
                "tokenizer=, such as AutoTokenizer.from_pretrained(name), or token ids as a tensor "
                "[prompts, tokens]."
            )
        if is_text:
            ids = self._tokenizer.encode(prompt)
            tokens = torch.tensor(getattr(ids, "ids", ids), dtype=torch.long)
        known = isinstance(tokens, Tensor) and tokens.dtype is torch.int64
        if not (known and tokens.ndim == 1 and tokens.numel()):
            raise ValueError(
                f"prompts[{i}]={shorten(prompt)} must be a text, or a tensor [tokens] of integers, "
                "with a token at least."
            )
        return (prompt if is_text else self._decoded(tokens)), tokens.cpu()

    def _decoded(self, tokens: Tensor) -> str:
        ids = tokens.tolist()
        return " ".join(map(str, ids)) if self._tokenizer is None else self._tokenizer.decode(ids)
