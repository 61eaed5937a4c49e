"""The arguments of the Trainer by task, as tables: from its signature and its docstring."""

import inspect
import re
from collections.abc import Iterator

from composable import Trainer

GROUPS = {
    "Model and data": "model train_dataloader eval_dataloader input_key target_key batch_layout "
    "count_tokens",
    "Loss and steps": "loss_fn loss_mean_over optimizers decay_norms_and_biases schedulers "
    "step_schedulers_every_batch grad_accum microbatch_size accumulate_batches nonfinite_loss",
    "Methods": "algorithms",
    "Length and evaluation": "max_duration iteration_length metrics eval_interval",
    "Watching": "callbacks loggers log_interval progress_bar record_command",
    "Device and precision": "device precision compile parallel deepspeed_config",
    "Repeating": "seed deterministic_mode check_effects",
    "Saving": "save_folder save_interval save_filename save_num_checkpoints_to_keep "
    "save_overwrite save_weights_only save_ignore_keys save_in_background save_error save_best "
    "save_best_mode saver",
    "Loading": "autoresume load_path load_weights_only load_ignore_keys load_best_at_end",
}
"""The names of the arguments, by the heading under which they are shown."""


def argument_tables() -> list[str]:
    """Render a table for each group.

    Raises:
        ValueError: An argument is in no group, or a group names something else.
    """
    parameters = dict(inspect.signature(Trainer).parameters)
    grouped = [name for names in GROUPS.values() for name in names.split()]
    if wrong := set(grouped) ^ set(parameters):
        raise ValueError(f"the groups and the Trainer's arguments differ by {sorted(wrong)}")
    documented = dict(_descriptions(inspect.getdoc(Trainer.__init__) or ""))
    lines = []
    for heading, names in GROUPS.items():
        lines += [f"### {heading}", "", "| argument | default | what it is |", "|---|---|---|"]
        for name in names.split():
            default = parameters[name].default
            shown = "" if default is inspect.Parameter.empty else f"`{_literal(default)}`"
            lines.append(f"| `{name}` | {shown} | {_first_sentence(documented[name])} |")
        lines.append("")
    return lines[:-1]


def _descriptions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each argument of a docstring."""
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    for entry in re.split(r"\n(?=    \w+: )", "\n" + section)[1:]:
        name, _, description = entry.partition(":")
        yield name.strip(), " ".join(description.split())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text)[0].replace("|", r"\|")


def _literal(default: object) -> str:
    return repr(
        default if isinstance(default, (bool, int, str, tuple, type(None))) else str(default)
    )
