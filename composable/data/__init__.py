"""Deterministic data order, batches and augmentation noise."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.data.batch_size_warmup import BatchSizeWarmupSampler as BatchSizeWarmupSampler
    from composable.data.indexed import Indexed as Indexed
    from composable.data.infobatch import InfoBatch as InfoBatch
    from composable.data.infobatch import InfoBatchSampler as InfoBatchSampler
    from composable.data.length_grouped import (
        LengthGroupedBatchSampler as LengthGroupedBatchSampler,
    )
    from composable.data.mixture import Mixture as Mixture
    from composable.data.order import MovedGeneratorWarning as MovedGeneratorWarning
    from composable.data.order import ReplayedBatchesWarning as ReplayedBatchesWarning
    from composable.data.order import get_generator_states as get_generator_states
    from composable.data.order import read_loader_state as read_loader_state
    from composable.data.order import seeded_batches as seeded_batches
    from composable.data.order import set_generator_states as set_generator_states
    from composable.data.packed_documents import PackedDocuments as PackedDocuments
    from composable.data.per_example import PerExample as PerExample
    from composable.data.sampler import GlobalBatchSampler as GlobalBatchSampler
    from composable.data.streams import UnshardedStreamWarning as UnshardedStreamWarning
    from composable.data.token_files import TokenFiles as TokenFiles
    from composable.data.token_files import write_token_file as write_token_file
    from composable.data.worker_shard import WorkerShard as WorkerShard
else:
    export_lazily(__name__)
