"""Value embeddings."""

import composable.functional as F
from composable.algorithms import ValueEmbeddings
from tests.support.cases import SURGERY, AlgorithmCase, Case, Overview
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import TOKENS, of_language_model

CASE = Case(
    functions=[
        of_language_model(
            F.value_embeddings,
            needs={"channels": 4},
            sought=TOKENS,
            added=r"hidden[12]\.0\.value_embedding\.(table|gate)",
            invalid_sets=[
                ({"layers": [2]}, r"layers=\[2\] must be numbers from -2 to 1"),
                ({"channels": 9}, "channels=9 must be at most 8"),
            ],
        ),
    ],
    algorithm=AlgorithmCase(
        ValueEmbeddings,
        {"channels": [4, 8], "layers": [None, (-1,)]},
        meaning=surgery(F.value_embeddings),
        neutral=ValueEmbeddings(channels=4),
        cannot={VISION: "images are not tokens"},
        order_matters={"Factorize": "a layer of values with embeddings is not factorized"},
    ),
    invalid={"layers": (3, "x", [], [0.5], [True])},
    overview=Overview(
        group=SURGERY,
        summary="adds a gated embedding of the token to the values of attention",
        changes="values of attention: plus a gated embedding of the token",
        cost="× 1.05",
        evidence="practice: [modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt)",
        use_for="language models with a small vocabulary that are trained from scratch",
    ),
)
