"""Sequence packing."""

import torch

import composable.functional as F
from tests.support.cases import COMPUTE, Case, FunctionCase, Overview
from tests.support.invalid import NO_TENSOR, no_count


def numbers(size: int) -> tuple[torch.Tensor]:
    """Return the numbers of the documents of each row."""
    return (torch.tensor([1, 1, 2, 2, 2, 0]).expand(size, -1).contiguous(),)


COUNTED = "the size of its result is the number of documents, which only the values tell"

CASE = Case(
    functions=[
        FunctionCase(
            F.pack_documents,
            needs={"length": 6},
            arguments={"documents": [torch.tensor([5, 6]), torch.tensor([7, 8, 9])]},
            invalid_sets=[
                ({"documents": documents}, message)
                for documents, message in [
                    ([], "documents=.. must have at least one document"),
                    ([torch.zeros(2, 2).long()], r"documents\[0\] must have one d"),
                    ([torch.ones(7).long()], r"lengths\[0\]=7 must be at most length=6"),
                    ([torch.zeros(0).long()], r"lengths\[0\]=0 must be at least 1"),
                    (
                        [torch.ones(1).long(), torch.zeros(2).int()],
                        r"documents\[1\] must be torch.int64 on cpu, as documents\[0\], not "
                        r"torch.int32",
                    ),
                ]
            ],
        ),
        FunctionCase(F.pack_lengths, arguments=([2, 5, 3], 6)),
        FunctionCase(F.document_mask, arguments=numbers),
        FunctionCase(
            F.cumulative_lengths,
            arguments=numbers,
            expected_failures={"vmap": COUNTED, "no_sync": COUNTED},
        ),
    ],
    invalid={
        "documents": (3, "x", None, [], [3], [torch.zeros(2)], torch.zeros(2).long()),
        "length": no_count(1),
        "lengths": (3, "x", None, [0], [2.5], [99], ["3"]),
        "pad_id": (None, 0.5, True),
        "document_ids": (*NO_TENSOR, torch.tensor(3)),
    },
    overview=Overview(
        group=COMPUTE,
        summary="packs documents into rows, and keeps them apart",
        changes="rows: several documents instead of padding",
        cost="× 0.37 of that with padding",
        evidence="paper: [Krell et al. 2021](https://arxiv.org/abs/2107.02027)",
        use_for="texts that are shorter than the rows, and of different lengths",
    ),
)
