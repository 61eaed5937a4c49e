"""Layers and blocks that methods insert into models."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from .attention_bias import alibi_bias as alibi_bias
    from .attention_bias import alibi_slopes as alibi_slopes
    from .blur import BlurConv1d as BlurConv1d
    from .blur import BlurConv2d as BlurConv2d
    from .blur import BlurConv3d as BlurConv3d
    from .blur import BlurMaxPool1d as BlurMaxPool1d
    from .blur import BlurMaxPool2d as BlurMaxPool2d
    from .blur import BlurMaxPool3d as BlurMaxPool3d
    from .blur import blur as blur
    from .factorized import FactorizedLayer as FactorizedLayer
    from .ngrams import NGramEmbedding as NGramEmbedding
    from .ngrams import embed_ngrams as embed_ngrams
    from .ngrams import hash_ngrams as hash_ngrams
    from .residual import ResidualBlock as ResidualBlock
    from .rotation import Rotation as Rotation
    from .rotation import rotary_embedding as rotary_embedding
    from .rotation import rotary_tables as rotary_tables
    from .rotation import rotate_pairs as rotate_pairs
    from .smeared import smear_tokens as smear_tokens
    from .squared_relu import SquaredReLU as SquaredReLU
else:
    export_lazily(__name__)
