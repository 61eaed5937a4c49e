"""Callbacks, one per file. Their state is saved in checkpoints."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.callbacks.activation_monitor import ActivationMonitor as ActivationMonitor
    from composable.callbacks.check_loss import CheckLoss as CheckLoss
    from composable.callbacks.checkpoint_saver import CheckpointSaver as CheckpointSaver
    from composable.callbacks.compute_norm import ComputeNorm as ComputeNorm
    from composable.callbacks.early_stopper import EarlyStopper as EarlyStopper
    from composable.callbacks.export_for_inference import ExportError as ExportError
    from composable.callbacks.export_for_inference import ExportForInference as ExportForInference
    from composable.callbacks.generate import Generate as Generate
    from composable.callbacks.gradient_noise import GradientNoise as GradientNoise
    from composable.callbacks.image_visualizer import ImageVisualizer as ImageVisualizer
    from composable.callbacks.lr_monitor import LRMonitor as LRMonitor
    from composable.callbacks.memory_monitor import MemoryMonitor as MemoryMonitor
    from composable.callbacks.memory_snapshot import MemorySnapshot as MemorySnapshot
    from composable.callbacks.mixture_monitor import MixtureMonitor as MixtureMonitor
    from composable.callbacks.nan_monitor import NaNMonitor as NaNMonitor
    from composable.callbacks.oom_observer import OOMObserver as OOMObserver
    from composable.callbacks.optimizer_monitor import OptimizerMonitor as OptimizerMonitor
    from composable.callbacks.predictions import Predictions as Predictions
    from composable.callbacks.printer import Printer as Printer
    from composable.callbacks.profiler import Profiler as Profiler
    from composable.callbacks.prune_trial import PruneTrial as PruneTrial
    from composable.callbacks.runtime_estimator import RuntimeEstimator as RuntimeEstimator
    from composable.callbacks.speed_monitor import SpeedMonitor as SpeedMonitor
    from composable.callbacks.system_monitor import SystemMonitor as SystemMonitor
    from composable.callbacks.threshold_stopper import ThresholdStopper as ThresholdStopper
    from composable.callbacks.time_split import TimeSplit as TimeSplit
    from composable.resume.manager import UnsavedCheckpointWarning as UnsavedCheckpointWarning
else:
    export_lazily(__name__)
