"""Names of other trainers: Composer, Lightning, Hugging Face's Trainer, Keras, timm's scripts.

Errors about an unknown name look here for what to write in this library, or why there is nothing
to write. In an advice, braces enclose the names of this library: an argument of the `Trainer` by
itself, `trainer.` and `state.` before their members, and others by the module to import them from.
A test looks each of them up.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

_SIMILAR = 0.75

F = TypeVar("F", bound=Callable[..., Any])


def _by_name(*advice: tuple[str, str]) -> Mapping[str, str]:
    """Return the advice on each name, from pairs of names and their common advice."""
    return {name: text for names, text in advice for name in names.split()}


_LOADER = "set it in the DataLoader that you pass as {train_dataloader} or {eval_dataloader}"
_OPTIMIZER = "pass {optimizers}=functools.partial(torch.optim.AdamW, lr=..., weight_decay=...)"
_ANNEAL = "pass {schedulers}={composable.optim.cosine}(warmup='100ba')"
_LENGTH = "pass {max_duration}, such as '10ep' or '1000ba'"
_EVAL = "pass {eval_dataloader} and {eval_interval}, such as '1ep' or '100ba'"
_SAVE = "pass {save_folder} and {save_interval}, such as '1ep' or '100ba'"
_RESUME = "pass {load_path}, or {autoresume}=True with a {save_folder}"
_SHARD = "pass {parallel}='ddp' or {parallel}={composable.distributed.FSDP2}()"
_LAUNCH = "pass {device}, and start several processes with `composable launch` or torchrun"
_BEST = "pass {save_best}, such as 'metrics/eval/accuracy', and {save_best_mode}"
_CLIP = "pass {algorithms}=[{composable.algorithms.GradientClipping}('norm', 1.0)]"
_NAMES = "pass it to a logger, such as {composable.loggers.WandBLogger}, in {loggers}"
_SUBSET = "pass a loader with fewer batches; {max_duration}='10ba' shortens the run"
_HUB = "nothing is uploaded; upload the {save_folder} after {trainer.fit}, with huggingface_hub"
_LEVEL = "set it by logging.getLogger('composable').setLevel(...)"
_GROUP = "join the processes by torch.distributed.init_process_group before you build the Trainer"
_ON_MODEL = "it concerns the model alone: apply it before you pass the model"
_WHOLE_METRICS = "metrics are computed batch by batch: pass {metrics}, functions (outputs, targets)"
_WEIGHTS = "the loss determines it: pass a {loss_fn} that weights its terms"
_PROFILE = "pass {callbacks}=[{composable.callbacks.Profiler}(folder)]"
_NOT_NEEDED = "it is not needed here"
_IN_LOADER = "it concerns the loader that you pass as {train_dataloader} or {eval_dataloader}"
_OTHER_DATA = "pass a DataLoader or a list of batches as {train_dataloader} or {eval_dataloader}"

ARGUMENTS: Mapping[str, str] = _by_name(
    # --- length ---
    ("max_epochs epochs num_epochs num_train_epochs n_epochs max_steps max_time", _LENGTH),
    ("total_steps train_steps", _LENGTH),
    (
        "min_epochs min_steps",
        "a run stops early only if a callback requests it, such as "
        "{composable.callbacks.EarlyStopper}, whose patience you can raise",
    ),
    ("steps_per_epoch", "an epoch is one pass over {train_dataloader}"),
    ("fast_dev_run", "{trainer.check}() runs one batch of everything"),
    (
        "limit_train_batches limit_val_batches limit_test_batches overfit_batches"
        " limit_predict_batches train_subset_num_batches eval_subset_num_batches validation_steps",
        _SUBSET,
    ),
    ("subset_num_batches", _SUBSET),
    ("reset_time", "build a new Trainer; {trainer.fit}(duration=...) trains for longer"),
    # --- data ---
    ("train_dataset train_data train_loader dataloader trainloader", _OTHER_DATA),
    ("train_dataloaders data x y datamodule", _OTHER_DATA),
    (
        "eval_dataset val_dataloader val_dataloaders validation_data val_loader test_dataloader"
        " eval_data test_data valid_dataloader evaluators validation_split",
        "pass {eval_dataloader}: a loader, or one or several {composable.Evaluator}",
    ),
    ("train_dataloader_label", "the training loss is logged as loss/train"),
    ("batch_size per_device_train_batch_size train_batch_size", _LOADER),
    ("per_device_eval_batch_size eval_batch_size validation_batch_size", _LOADER),
    (
        "data_collator collate_fn num_workers shuffle drop_last dataloader_drop_last"
        " dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers"
        " dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order"
        " train_sampling_strategy length_column_name group_by_length",
        _LOADER,
    ),
    ("processing_class tokenizer", "tokenize in the dataset or the collate_fn of the DataLoader"),
    (
        "use_distributed_sampler replace_sampler_ddp",
        "loaders give the batches of all processes, which share them; see `data` of"
        " {composable.distributed.DDP}",
    ),
    ("reload_dataloaders_every_n_epochs", "a loader with a method set_epoch gets every epoch"),
    (
        "spin_dataloaders ignore_data_skip",
        "a resume starts at the next batch, at no cost for lists",
    ),
    ("remove_unused_columns label_names", "pass {input_key} and {target_key}, or neither"),
    ("data_seed", "pass {seed}, which determines the order of the data too"),
    # --- model and loss ---
    ("model_init", "pass a {model}"),
    ("loss criterion loss_function compute_loss_func", "pass {loss_fn}(outputs, targets)"),
    ("class_weight sample_weight loss_weights weighted_metrics auto_scale_loss", _WEIGHTS),
    (
        "label_smoothing_factor label_smoothing",
        "pass {algorithms}=[{composable.algorithms.LabelSmoothing}(0.1)]",
    ),
    (
        "use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha sync_batchnorm",
        _ON_MODEL,
    ),
    (
        "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing"
        " activation_checkpointing_kwargs",
        "call model.gradient_checkpointing_enable() of Transformers, or pass"
        " {parallel}={composable.distributed.FSDP2}(checkpointing=True)",
    ),
    # --- optimization ---
    ("optimizer optim optim_args optim_target_modules optimizer_cls_and_kwargs", _OPTIMIZER),
    ("learning_rate lr weight_decay adam_beta1 adam_beta2 adam_epsilon betas momentum", _OPTIMIZER),
    (
        "lr_scheduler lr_scheduler_type lr_scheduler_kwargs scheduler warmup_steps warmup_ratio"
        " warmup",
        _ANNEAL,
    ),
    (
        "scale_schedule_ratio",
        "pass {schedulers}={composable.optim.scale_schedule}(schedule, ratio)",
    ),
    (
        "gradient_accumulation_steps accumulate_grad_batches accumulation_steps",
        "pass {accumulate_batches} to step once for several batches, or {grad_accum} to split each",
    ),
    ("device_train_microbatch_size train_device_microbatch_size", "pass {microbatch_size}"),
    ("auto_find_batch_size", "pass {microbatch_size}='auto'"),
    (
        "accumulate_train_batch_on_tokens average_tokens_across_devices",
        "pass {loss_mean_over}='tokens'",
    ),
    ("max_grad_norm gradient_clip_val gradient_clip_algorithm grad_clip clip_grad_norm", _CLIP),
    ("clipnorm clipvalue global_clipnorm", _CLIP),
    ("algorithm_passes", "declare `before`, `after` and a stage in the {composable.Algorithm}"),
    # --- precision and compilation ---
    ("bf16 fp16 amp mixed_precision use_amp", "pass {precision}='amp_bf16' or 'amp_fp16'"),
    ("bf16_full_eval fp16_full_eval", "evaluations have the {precision} of training"),
    ("tf32", "pass {precision}='tf32'"),
    ("precision_config", "pass {precision}={composable.Precision}(...)"),
    (
        "torch_compile torch_compile_backend torch_compile_mode compile_config jit_compile"
        " use_compile",
        "pass {compile}=True, or a mapping of options of torch.compile",
    ),
    ("run_eagerly", "models run eagerly, unless you pass {compile}=True"),
    ("steps_per_execution torch_empty_cache_steps", _NOT_NEEDED),
    ("inference_mode", "evaluations compute no gradients"),
    # --- evaluation ---
    (
        "eval_strategy evaluation_strategy eval_steps val_check_interval check_val_every_n_epoch"
        " validation_freq eval_freq eval_every eval_delay",
        _EVAL,
    ),
    ("eval_on_start num_sanity_val_steps", "call {trainer.eval}() before {trainer.fit}()"),
    ("do_train do_eval do_predict", "call {trainer.fit}, {trainer.eval} or {trainer.predict}"),
    (
        "compute_metrics preprocess_logits_for_metrics include_for_metrics batch_eval_metrics"
        " eval_do_concat_batches eval_use_gather_object eval_accumulation_steps"
        " prediction_loss_only",
        _WHOLE_METRICS,
    ),
    # --- logging ---
    (
        "logging_strategy logging_steps log_every_n_steps logging_first_step log_interval_steps",
        "pass {log_interval}, such as '10ba'",
    ),
    (
        "log_to_console console_stream console_log_interval",
        "pass {loggers}={composable.loggers.ConsoleLogger}()",
    ),
    ("logger report_to log", "pass {loggers}: one or several, or 'auto'"),
    (
        "run_name project experiment_name trackio_space_id trackio_bucket_id"
        " trackio_static_space_id",
        _NAMES,
    ),
    ("log_level log_level_replica log_on_each_node python_log_level", _LEVEL),
    ("logging_nan_inf_filter", "losses are logged as they are; see {nonfinite_loss}"),
    ("log_traces", "pass {check_effects}=True in tests, and read {trainer.plan}.explain()"),
    ("auto_log_hparams enable_autolog_hparams", "hyperparameters are logged by default"),
    ("include_num_input_tokens_seen", "pass {count_tokens}"),
    ("disable_tqdm enable_progress_bar load_progress_bar verbose", "pass {progress_bar}"),
    ("enable_model_summary", "print the model"),
    ("profiler debug", _PROFILE),
    ("skip_memory_metrics", "pass {callbacks}=[{composable.callbacks.MemoryMonitor}()]"),
    # --- checkpoints ---
    ("output_dir default_root_dir save_dir checkpoint_dir dirpath", "pass {save_folder}"),
    (
        "save_strategy save_steps save_freq save_every enable_checkpointing every_n_epochs"
        " every_n_train_steps",
        _SAVE,
    ),
    ("save_total_limit save_top_k", "pass {save_num_checkpoints_to_keep}"),
    ("save_only_model", "pass {save_weights_only}"),
    (
        "save_latest_filename save_last",
        "{load_path} takes a folder, and finds its latest checkpoint",
    ),
    ("save_metrics", "results of evaluations are saved in every checkpoint"),
    ("save_on_each_node", "one process saves, to a folder that all machines share"),
    ("enable_jit_checkpoint", "SIGTERM saves a checkpoint if there is a {save_folder}"),
    ("load_best_model_at_end restore_best_weights", "pass {load_best_at_end} and {save_best}"),
    ("metric_for_best_model greater_is_better monitor", _BEST),
    ("resume_from_checkpoint ckpt_path resume checkpoint initial_epoch", _RESUME),
    (
        "load_object_store save_object_store model_registry",
        "files are local: download a checkpoint first, and pass its {load_path}",
    ),
    (
        "load_strict_model_weights load_exclude_algorithms strict",
        "name what not to load in {load_ignore_keys}, such as 'memory/EMA'",
    ),
    ("restore_callback_states_from_checkpoint", "a resume restores all callbacks"),
    (
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push"
        " hub_revision",
        _HUB,
    ),
    # --- processes and devices ---
    ("accelerator devices num_nodes use_cpu no_cuda gpus num_processes local_rank", _LAUNCH),
    (
        "strategy fsdp fsdp_config parallelism_config ddp_sync_strategy accelerator_config plugins"
        " ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph",
        _SHARD,
    ),
    ("ddp_backend ddp_timeout dist_timeout", _GROUP),
    ("deepspeed", "pass {deepspeed_config}"),
    # --- other ---
    ("args", "the fields of TrainingArguments are arguments of the Trainer itself"),
    ("deterministic full_determinism", "pass {deterministic_mode}=True and a {seed}"),
    ("benchmark", "set torch.backends.cudnn.benchmark"),
    ("detect_anomaly", "use torch.autograd.set_detect_anomaly, or see {nonfinite_loss}"),
    ("barebones", "without loggers, callbacks and {progress_bar} nothing of them is paid"),
    # --- timm's scripts ---
    (
        "data_dir dataset train_split val_split class_map dataset_download img_size input_size"
        " crop_pct mean std interpolation train_interpolation scale ratio hflip vflip color_jitter"
        " no_aug aug_repeats pin_mem no_prefetcher workers use_multi_epochs_loader worker_seeding"
        " epoch_repeats tta",
        _IN_LOADER,
    ),
    (
        "pretrained num_classes model_kwargs initial_checkpoint gp drop drop_connect drop_block"
        " bn_momentum bn_eps sync_bn split_bn dist_bn torchscript fuser grad_checkpointing",
        _ON_MODEL,
    ),
    (
        "drop_path",
        "pass {algorithms}=[{composable.algorithms.StochasticDepth}(...)], or give it to the model",
    ),
    ("channels_last", "pass {algorithms}=[{composable.algorithms.ChannelsLast}()]"),
    ("opt opt_eps opt_betas opt_kwargs", _OPTIMIZER),
    ("layer_decay", "pass groups to {optimizers}, from {composable.optim.layerwise_groups}"),
    ("clip_grad", _CLIP),
    ("clip_mode", "it is clipping_type of {composable.algorithms.GradientClipping}"),
    (
        "sched sched_kwargs min_lr warmup_lr warmup_epochs cooldown_epochs decay_epochs"
        " decay_milestones decay_rate lr_cycle_mul lr_cycle_decay lr_cycle_limit lr_k_decay"
        " lr_noise lr_noise_pct lr_noise_std patience_epochs",
        "pass {schedulers}, such as {composable.optim.cosine}(warmup='5ep')",
    ),
    ("start_epoch", _RESUME),
    ("no_resume_opt", "pass {load_weights_only}=True"),
    ("mixup", "pass {algorithms}=[{composable.algorithms.MixUp}(alpha=0.2)]"),
    ("cutmix cutmix_minmax", "pass {algorithms}=[{composable.algorithms.CutMix}(alpha=1.0)]"),
    (
        "mixup_prob mixup_switch_prob",
        "pass {algorithms}=[{composable.choose}(...)] of MixUp, CutMix and {composable.identity}",
    ),
    ("mixup_off_epoch", "pass {algorithms}=[{composable.during}('0ep', '100ep', ...)]"),
    ("mixup_mode", "pass {algorithms}=[{composable.algorithms.MixUp}(per_sample=True)]"),
    ("smoothing", "pass {algorithms}=[{composable.algorithms.LabelSmoothing}(0.1)]"),
    ("aa", "pass {algorithms}=[{composable.algorithms.RandAugment}()]"),
    ("reprob remode recount resplit", "pass {algorithms}=[{composable.algorithms.CutOut}(...)]"),
    ("aug_splits jsd_loss", "see {composable.functional.jensen_shannon_loss}, for AugMix"),
    ("bce_loss bce_target_thresh", "pass {loss_fn}(outputs, targets)"),
    (
        "model_ema model_ema_decay model_ema_force_cpu",
        "pass {algorithms}=[{composable.algorithms.EMA}(half_life='1ep')]",
    ),
    ("amp_dtype apex_amp native_amp", "pass {precision}='amp_bf16' or 'amp_fp16'"),
    ("torchcompile", "pass {compile}=True, or a mapping of options of torch.compile"),
    ("grad_accum_steps", "pass {accumulate_batches}"),
    ("no_ddp_bb", _SHARD),
    ("output experiment", "pass {save_folder}"),
    ("checkpoint_hist", "pass {save_num_checkpoints_to_keep}"),
    ("recovery_interval", _SAVE),
    ("eval_metric", _BEST),
    ("log_wandb", "pass {loggers}={composable.loggers.WandBLogger}()"),
    ("save_images", "pass {callbacks}=[{composable.callbacks.ImageVisualizer}('1ep')]"),
)
"""The arguments of other trainers, and of their methods that train."""

METHODS: Mapping[str, str] = _by_name(
    ("train", "call {trainer.fit}()"),
    ("evaluate validate test evaluation_loop", "call {trainer.eval}()"),
    ("training_step train_step", "call {trainer.train_batch}(state)"),
    ("test_step validation_step prediction_step", "call {trainer.eval}() or {trainer.predict}"),
    ("save_model save_state save save_weights", "call {trainer.save_checkpoint}(path)"),
    ("save_checkpoint_to_save_folder", "call {trainer.save_checkpoint}(path)"),
    ("load_checkpoint load_model load_weights resume", "pass {load_path} to a new Trainer"),
    ("export_for_inference", "use {composable.callbacks.ExportForInference}"),
    ("compile", "pass {loss_fn}, {optimizers} and {metrics} to the Trainer, or {compile}=True"),
    ("log log_dict log_metrics", "call log_metrics of {trainer.logger}"),
    ("log_history logged_metrics", "pass a {composable.loggers.InMemoryLogger}: {trainer.history}"),
    ("callback_metrics progress_bar_metrics", "results of evaluations are {state.metrics}"),
    ("global_step current_epoch is_last_batch", "see {state.timestamp} of {trainer.state}"),
    (
        "model lightning_module optimizers lr_schedulers",
        "see {state.model} and {state.optimizers} of {trainer.state}",
    ),
    ("algorithms callbacks", "see algorithms and callbacks of {trainer.plan}"),
    ("should_stop stop_training", "return {composable.Control.STOP} from a callback"),
    ("remove_callback pop_callback", "build the Trainer without the callback"),
    ("checkpoint_callback saved_checkpoints", "the best checkpoint is {trainer.best}"),
    ("push_to_hub create_model_card", _HUB),
    ("hyperparameter_search tune", "use {composable.compare}, which tunes the arms"),
    ("is_global_zero is_world_process_zero", "see {state.is_main_process} of {trainer.state}"),
    ("world_size global_rank local_rank num_devices", "see {composable.distributed.Processes}"),
    ("train_dataloader val_dataloaders", "keep the loaders that you passed to the Trainer"),
    ("close", "files are closed when {trainer.fit} ends"),
    # --- of a LightningModule, and of Hugging Face's Trainer and Keras ---
    ("configure_optimizers create_optimizer", "pass {optimizers}, functions of the parameters"),
    ("create_scheduler create_optimizer_and_scheduler", "pass {optimizers} and {schedulers}"),
    ("compute_loss", "pass {loss_fn}(outputs, targets), or define loss(outputs, batch) in {model}"),
    ("predict_step predict_on_batch", "call {trainer.predict}(batches)"),
    ("train_on_batch", "call {trainer.train_batch}(state)"),
    ("test_on_batch", "call {trainer.eval}(batches)"),
    ("save_hyperparameters hparams", "hyperparameters are logged by default"),
    ("load_from_checkpoint", "use {composable.checkpoint.load_weights}"),
    ("to_onnx to_torchscript export", "use {composable.callbacks.ExportForInference}"),
    ("default_root_dir log_dir", "files are in the {save_folder} and the folders of {loggers}"),
    ("ckpt_path", _RESUME),
    ("estimated_stepping_batches num_training_batches", "see {state.epoch_length}"),
    ("get_train_dataloader get_eval_dataloader get_test_dataloader", _OTHER_DATA),
    ("is_local_process_zero", "see {state.is_main_process} of {trainer.state}"),
    ("floating_point_ops store_flos", "see {state.flops} of {trainer.state}"),
    ("get_learning_rates", "the loggers get them as lr; see {composable.callbacks.LRMonitor}"),
    ("save_metrics", "pass {loggers}, such as {composable.loggers.JSONLinesLogger}"),
)
"""The methods and attributes of other trainers."""

STATE: Mapping[str, str] = _by_name(
    ("epoch current_epoch", "the number of finished epochs is {state.timestamp.epoch}"),
    ("step global_step batch_idx iteration", "the number of batches is {state.timestamp.batch}"),
    ("num_input_tokens_seen", "the number of tokens is {state.timestamp.token}"),
    ("max_epochs max_steps num_train_epochs", "the length of the run is {state.max_duration}"),
    ("dataloader_len num_training_batches", "the batches of an epoch are {state.epoch_length}"),
    ("get_elapsed_duration", "the finished share of the run is {state.elapsed}"),
    ("eval_metrics eval_metric_values metric_outputs", "results are {state.metrics}, by evaluator"),
    ("train_metrics train_metric_values", "only evaluations have {state.metrics}"),
    ("logs log_history callback_metrics", "results of evaluations are {state.metrics}"),
    ("batch_get_item", "the parts of a batch are {state.inputs} and {state.targets}"),
    ("batch_set_item", "return {state.with_batch}(inputs=...) from an algorithm"),
    ("stop_training should_stop should_training_stop", "return {composable.Control.STOP}"),
    ("seed rank_zero_seed", "the seed is {state.key.seed}"),
    ("total_loss_dict", "the loss is {state.loss}, and the parts are among {state.outputs}"),
    ("optimizer", "the optimizers are {state.optimizers}"),
    ("lr_scheduler scheduler", "the schedulers are {state.schedulers}"),
    ("is_world_process_zero is_global_zero", "see {state.is_main_process}"),
    ("algorithms callbacks evaluators", "see {trainer.plan}; a state has none"),
    ("run_name save_metrics load_path profiler", "a state has values of the training only"),
    ("device_train_microbatch_size", "pass {microbatch_size} to the Trainer"),
    ("fsdp_config fsdp_enabled tp_config device_mesh", "see {parallel} of the Trainer"),
    ("get_model_state_dict state_dict", "call {trainer.save_checkpoint}, or {state.to_json}()"),
    ("total_flos", "the number of operations is {state.flops}"),
    ("best_metric best_global_step best_model_checkpoint", "see {trainer.best}"),
    ("is_local_process_zero", "see {state.is_main_process}"),
    (
        "logging_steps eval_steps save_steps",
        "they are {log_interval}, {eval_interval} and {save_interval} of the Trainer",
    ),
    ("train_batch_size", "the loader sets the size of a batch"),
    (
        "is_hyper_param_search trial_name trial_params",
        "trials are runs of {composable.compare}; a state does not name them",
    ),
    ("stateful_callbacks", "callbacks save by state_dict and load_state_dict"),
)
"""The fields and methods of the states of other trainers."""

CLASSES: Mapping[str, str] = _by_name(
    (
        "ModelCheckpoint",
        "use {composable.callbacks.CheckpointSaver}, or {save_folder} of the Trainer",
    ),
    ("EarlyStopping EarlyStoppingCallback", "use {composable.callbacks.EarlyStopper}"),
    ("LearningRateMonitor", "use {composable.callbacks.LRMonitor}"),
    ("DeviceStatsMonitor SystemMetricsMonitor", "use {composable.callbacks.MemoryMonitor}"),
    ("ThroughputMonitor", "use {composable.callbacks.SpeedMonitor}"),
    ("TerminateOnNaN", "use {composable.callbacks.NaNMonitor}, or {nonfinite_loss} of the Trainer"),
    ("StochasticWeightAveraging", "use {composable.algorithms.SWA}"),
    ("EMAWeightAveraging WeightAveraging", "use {composable.algorithms.EMA}"),
    ("GradientAccumulationScheduler", "pass {accumulate_batches} to the Trainer"),
    ("BatchSizeFinder", "pass {microbatch_size}='auto' to the Trainer"),
    ("LearningRateScheduler ReduceLROnPlateau", "pass {schedulers} to the Trainer"),
    ("LearningRateFinder", "tune it by {composable.compare}"),
    ("LambdaCallback", "pass a function (event, state, logger) in {callbacks}"),
    ("TrainerCallback", "derive from {composable.Callback}"),
    (
        "RichProgressBar TQDMProgressBar ProgressBar ProgressCallback",
        "use {composable.loggers.ProgressBarLogger}, or {progress_bar} of the Trainer",
    ),
    ("PrinterCallback", "use {composable.callbacks.Printer}"),
    ("ModelSummary RichModelSummary", "print the model"),
    ("OnExceptionCheckpoint", "SIGTERM and SIGINT save a checkpoint in {save_folder}"),
    ("Timer", "pass {max_duration} in seconds, such as '1h30m'"),
    ("ExportForInferenceCallback", "use {composable.callbacks.ExportForInference}"),
    ("LoadCheckpoint", "pass {load_path} to the Trainer"),
    ("TensorboardLogger TensorBoard SummaryWriter", "use {composable.loggers.TensorBoardLogger}"),
    ("WandbLogger WandbCallback", "use {composable.loggers.WandBLogger}"),
    ("CometMLLogger", "use {composable.loggers.CometLogger}"),
    ("FileLogger", "use {composable.loggers.JSONLinesLogger}"),
    ("CSVLoggerCallback", "use {composable.loggers.CSVLogger}"),
    ("FusedLayerNorm", "use {composable.algorithms.LowPrecisionLayerNorm}"),
    ("Mixup", "use {composable.algorithms.MixUp}"),
    ("Cutmix", "use {composable.algorithms.CutMix}"),
    ("Cutout", "use {composable.algorithms.CutOut}"),
    (
        "DecoupledAdamW DecoupledSGDW",
        "use torch.optim.AdamW or SGD; its weight decay is multiplied by the learning rate",
    ),
    ("ComposerModel LightningModule", "pass a torch.nn.Module and a {loss_fn} to the Trainer"),
    ("ComposerClassifier", "use {composable.models.Classifier}, or any module with {loss_fn}"),
    ("DataSpec LightningDataModule", "pass loaders, with {input_key} and {target_key}"),
    ("TrainingArguments TrainerConfig", "pass the arguments to {composable.Trainer} itself"),
    ("apply_alibi", "use {composable.functional.alibi}, which returns a new model"),
    ("apply_blurpool", "use {composable.functional.blurpool}, which returns a new model"),
    ("apply_channels_last", "use {composable.functional.channels_last}"),
    ("apply_factorization", "use {composable.functional.factorize}, which returns a new model"),
    ("apply_gated_linear_units", "use {composable.functional.gated_linear_units}"),
    ("apply_ghost_batchnorm", "use {composable.functional.ghost_batchnorm}"),
    ("apply_gradient_clipping", "use {composable.functional.clip_gradients}"),
    ("apply_gyro_dropout", "use {composable.functional.gyro_dropout}"),
    ("apply_low_precision_layernorm", "use {composable.functional.low_precision_layernorm}"),
    ("apply_low_precision_groupnorm", "use {composable.functional.low_precision_groupnorm}"),
    ("apply_squeeze_excite", "use {composable.functional.squeeze_excite}"),
    ("apply_stochastic_depth", "use {composable.functional.stochastic_depth}"),
    ("apply_weight_standardization", "use {composable.functional.weight_standardization}"),
    ("augmix_image", "use {composable.functional.augmix}, for a batch"),
    ("colout_batch", "use {composable.functional.colout}"),
    ("compute_ema", "use {composable.functional.ema}, which returns a new average"),
    ("cutmix_batch", "use {composable.functional.cutmix}"),
    ("cutout_batch", "use {composable.functional.cutout}"),
    ("freeze_layers", "use {composable.functional.frozen_layers}"),
    ("mixup_batch", "use {composable.functional.mixup}"),
    ("randaugment_image", "use {composable.functional.randaugment}, for a batch"),
    ("set_batch_sequence_length", "use {composable.functional.set_sequence_length}"),
    ("should_selective_backprop", "use {composable.functional.should_select}"),
    # --- Lightning ---
    (
        "BackboneFinetuning BaseFinetuning",
        "set requires_grad, or use {composable.algorithms.LayerFreezing}",
    ),
    ("BasePredictionWriter", "{trainer.predict} returns the outputs"),
    ("ModelPruning", _ON_MODEL),
    ("SpikeDetection", "use {composable.callbacks.NaNMonitor}, or {nonfinite_loss} of the Trainer"),
    ("LitLogger", "derive from {composable.LoggerDestination}"),
    # --- Transformers ---
    ("DefaultFlowCallback", "pass {log_interval}, {eval_interval} and {save_interval}"),
    ("TensorBoardCallback", "use {composable.loggers.TensorBoardLogger}"),
    ("MLflowCallback", "use {composable.loggers.MLFlowLogger}"),
    ("CometCallback", "use {composable.loggers.CometLogger}"),
    ("AzureMLCallback", "use {composable.loggers.AzureMLLogger}"),
    (
        "ClearMLCallback CodeCarbonCallback DVCLiveCallback DagsHubCallback FlyteCallback"
        " KubeflowCallback NeptuneCallback SwanLabCallback TrackioCallback",
        "derive from {composable.LoggerDestination}",
    ),
    ("get_constant_schedule", "use {composable.optim.constant}"),
    ("get_constant_schedule_with_warmup", "use {composable.optim.constant}(warmup='100ba')"),
    ("get_linear_schedule_with_warmup", "use {composable.optim.linear}(warmup='100ba')"),
    ("get_cosine_schedule_with_warmup", "use {composable.optim.cosine}(warmup='100ba')"),
    (
        "get_cosine_with_hard_restarts_schedule_with_warmup",
        "use {composable.optim.cosine_restarts}",
    ),
    ("get_polynomial_decay_schedule_with_warmup", "use {composable.optim.polynomial}"),
    ("get_wsd_schedule", "use {composable.optim.warmup_stable_decay}"),
    ("get_scheduler", "pass {schedulers}={composable.optim.cosine}(warmup='100ba')"),
    # --- Keras ---
    ("BackupAndRestore", "pass {autoresume}=True with a {save_folder}"),
    ("ProgbarLogger", "use {composable.loggers.ProgressBarLogger}, or {progress_bar}"),
    ("SwapEMAWeights", "use {composable.algorithms.EMA}, which evaluates the averages"),
    ("RemoteMonitor", "derive from {composable.LoggerDestination}"),
    # --- timm ---
    ("FastCollateMixup", "use {composable.algorithms.MixUp} and {composable.algorithms.CutMix}"),
    ("ModelEma ModelEmaV2 ModelEmaV3", "use {composable.algorithms.EMA}"),
    ("LabelSmoothingCrossEntropy", "use {composable.algorithms.LabelSmoothing}"),
    ("SoftTargetCrossEntropy", "pass {loss_fn}=torch.nn.functional.cross_entropy"),
    ("JsdCrossEntropy AugMixDataset", "see {composable.functional.jensen_shannon_loss}"),
    ("RandomErasing", "use {composable.algorithms.CutOut}"),
    ("NativeScaler ApexScaler", "pass {precision}='amp_fp16' to the Trainer"),
    ("CosineLRScheduler", "use {composable.optim.cosine}"),
    ("StepLRScheduler", "use {composable.optim.step}"),
    ("MultiStepLRScheduler", "use {composable.optim.multi_step}"),
    ("PolyLRScheduler", "use {composable.optim.polynomial}"),
)
"""The classes and functions of other trainers."""

METRICS: Mapping[str, str] = _by_name(
    ("eval_loss val_loss test_loss", "the loss of an evaluation is 'metrics/eval/loss'"),
    (
        "eval_accuracy val_accuracy val_acc test_acc top1 acc Accuracy MulticlassAccuracy",
        "name it in {metrics}; accuracy is then 'metrics/eval/accuracy'",
    ),
    (
        "LanguagePerplexity perplexity",
        "pass {metrics}, with {composable.metrics.perplexity}",
    ),
    ("CrossEntropy MulticlassCrossEntropy LanguageCrossEntropy", "it is 'metrics/eval/loss'"),
    (
        "loss train_loss loss/train/total",
        "the training loss is loss/train, and the evaluation loss is metrics/eval/loss",
    ),
    ("learning_rate lr-SGD lr-AdamW lr-SGD/group0", "learning rates are logged as lr"),
    ("grad_norm", "{composable.callbacks.OptimizerMonitor} logs l2_norm/grad/global"),
    ("train_runtime", "{composable.callbacks.SpeedMonitor} logs time/train"),
    ("eval_runtime", "{composable.callbacks.SpeedMonitor} logs time/val"),
    (
        "train_samples_per_second train_steps_per_second",
        "{composable.callbacks.SpeedMonitor} logs throughput/samples_per_sec and batches_per_sec",
    ),
    ("total_flos", "the number of operations is {state.flops}"),
    ("epoch step", "every record has its {state.timestamp}"),
)
"""The metrics that other trainers log."""

_OF_BATCH = "pass {input_key} and {target_key} to the Trainer, for all algorithms"
_RULE = "pass mode='max' or mode='min'"
_FOLDER = "the path or folder of the first argument says it"

CLASS_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "Algorithm": _by_name(("input_key target_key", _OF_BATCH)),
    "EMA": _by_name(
        ("decay ema_decay beta alpha momentum", "pass smoothing=0.999, or half_life='100ba'"),
        ("update_every every_n_steps", "pass update_interval='10ba'"),
        ("start start_step update_after_step ema_warmup_steps", "pass ema_start='100ba'"),
    ),
    "SWA": _by_name(
        ("swa_epoch_start", "pass swa_start='0.7dur'"),
        ("swa_lrs", "pass swa_lr"),
        ("annealing_epochs", "pass anneal_steps"),
        ("annealing_strategy", "pass anneal_strategy"),
        ("device", "averages are kept on the device of the model"),
    ),
    "GradientClipping": _by_name(
        ("gradient_clip_val max_norm max_grad_norm threshold", "pass clipping_threshold=1.0"),
        ("gradient_clip_algorithm norm_type", "pass clipping_type='norm'"),
    ),
    "LabelSmoothing": _by_name(("label_smoothing alpha epsilon", "pass smoothing=0.1")),
    "MixUp": _by_name(("mixup_alpha", "pass alpha=0.2")),
    "CutMix": _by_name(("cutmix_alpha", "pass alpha=1.0")),
    "CutOut": _by_name(("size", "pass length")),
    "ColOut": _by_name(
        ("resize_target", "targets that are images are cut like their inputs"),
        ("batch", "pass per_sample=True for batch=False"),
    ),
    "AugMix": _by_name(("augmentation_set", "pass augmentations")),
    "RandAugment": _by_name(
        ("augmentation_set", "pass augmentations"),
        ("num_ops", "pass depth"),
        ("magnitude", "pass severity"),
    ),
    "StochasticDepth": _by_name(
        ("target_layer_name", "pass target"), ("stochastic_method", "pass method")
    ),
    "LowPrecisionLayerNorm": _by_name(("apply_at", "surgery comes before the optimizers")),
    "LowPrecisionGroupNorm": _by_name(("apply_at", "surgery comes before the optimizers")),
    "CheckpointSaver": _by_name(
        ("dirpath", "pass folder"),
        ("every_n_epochs every_n_train_steps interval", "pass save_interval"),
        ("save_top_k", "pass num_checkpoints_to_keep"),
        ("monitor", "pass metric"),
        ("save_weights_only", "pass weights_only"),
        ("latest_filename remote_file_name latest_remote_file_name", _FOLDER),
    ),
    "EarlyStopper": _by_name(
        ("comp", _RULE),
        ("early_stopping_patience", "pass patience"),
        ("early_stopping_threshold", "pass min_delta"),
    ),
    "ThresholdStopper": _by_name(
        ("comp", _RULE), ("stop_on_batch", "it acts when an evaluation ends")
    ),
    "LRMonitor": _by_name(("logging_interval", "pass interval='1ba' or '1ep'")),
    "OptimizerMonitor": _by_name(("batch_log_interval", "pass interval='10ba'")),
    "ActivationMonitor": _by_name(("ignore_module_types", "pass modules, patterns of names")),
    "SpeedMonitor": _by_name(("time_unit", "rates are those of a second")),
    "RuntimeEstimator": _by_name(("time_unit", "times are in seconds")),
}
"""Arguments of the classes of other trainers that have the name of one here."""

HOOKS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Transformers": {
        "on_init_end": ("after_load",),
        "on_train_begin": ("fit_start",),
        "on_epoch_begin": ("epoch_start",),
        "on_step_begin": ("batch_start",),
        "on_substep_end": ("after_backward",),
        "on_pre_optimizer_step": ("before_optimizer_step",),
        "on_optimizer_step": ("after_optimizer_step",),
        "on_step_end": ("batch_end",),
        "on_log": ("log",),
        "on_prediction_step": ("eval_batch_end", "predict_batch_end"),
        "on_evaluate": ("eval_after_all", "eval_standalone_end"),
        "on_predict": ("predict_end",),
        "on_save": ("after_save",),
        "on_epoch_end": ("epoch_end",),
        "on_train_end": ("fit_end",),
        "on_push_begin": (),
    },
    "Lightning": {
        "setup": ("init",),
        "on_fit_start": ("fit_start",),
        "on_train_start": ("fit_start",),
        "on_train_epoch_start": ("epoch_start",),
        "on_train_batch_start": ("batch_start",),
        "on_before_zero_grad": ("before_zero_grad",),
        "on_before_backward": ("before_backward",),
        "on_after_backward": ("after_backward",),
        "on_before_optimizer_step": ("before_optimizer_step",),
        "on_train_batch_end": ("batch_end",),
        "on_validation_start": ("eval_before_all",),
        "on_validation_epoch_start": ("eval_before_all",),
        "on_validation_batch_start": ("eval_batch_start",),
        "on_validation_batch_end": ("eval_batch_end",),
        "on_validation_epoch_end": ("eval_after_all",),
        "on_validation_end": ("eval_after_all",),
        "on_train_epoch_end": ("epoch_end",),
        "on_save_checkpoint": ("before_save",),
        "on_load_checkpoint": ("after_load",),
        "on_train_end": ("fit_end",),
        "on_fit_end": ("fit_end",),
        "on_test_start": ("eval_standalone_start",),
        "on_test_epoch_start": ("eval_standalone_start",),
        "on_test_batch_start": ("eval_batch_start",),
        "on_test_batch_end": ("eval_batch_end",),
        "on_test_epoch_end": ("eval_standalone_end",),
        "on_test_end": ("eval_standalone_end",),
        "on_predict_start": ("predict_start",),
        "on_predict_epoch_start": ("predict_start",),
        "on_predict_batch_start": ("predict_batch_start",),
        "on_predict_batch_end": ("predict_batch_end",),
        "on_predict_epoch_end": ("predict_end",),
        "on_predict_end": ("predict_end",),
        "on_exception": ("close",),
        "teardown": ("close",),
        "on_sanity_check_start": (),
        "on_sanity_check_end": (),
    },
    "the Cerebras Model Zoo": {
        "setup": ("init",),
        "on_before_load_checkpoint": ("before_load",),
        "on_load_checkpoint": ("after_load",),
        "on_fit_start": ("fit_start",),
        "on_train_start": ("epoch_start",),
        "on_train_batch_start": ("batch_start",),
        "on_before_forward": ("before_forward", "eval_before_forward"),
        "on_after_forward": ("after_forward", "eval_after_forward"),
        "on_before_backward": ("before_backward",),
        "on_after_backward": ("after_backward",),
        "on_before_optimizer_step": ("before_optimizer_step",),
        "on_after_optimizer_step": ("after_optimizer_step",),
        "on_before_optimizer_zero_grad": ("before_zero_grad",),
        "on_after_optimizer_zero_grad": ("after_zero_grad",),
        "on_before_scheduler_step": ("before_scheduler_step",),
        "on_after_scheduler_step": ("after_scheduler_step",),
        "on_train_batch_end": ("batch_end",),
        "on_train_end": ("epoch_end",),
        "on_validate_start": ("eval_start",),
        "on_validate_batch_start": ("eval_batch_start",),
        "on_validate_batch_end": ("eval_batch_end",),
        "on_validate_end": ("eval_end",),
        "on_save_checkpoint": ("before_save",),
        "on_after_save_checkpoint": ("after_save",),
        "on_fit_end": ("fit_end",),
    },
    "Composer": {"post_close": ("close",)},
}
"""The hooks of other libraries whose names differ, with the methods to define in their place."""


def as_text(advice: str) -> str:
    """Return an advice without the braces around the names of this library."""
    return advice.replace("{", "").replace("}", "")


def advice_on(name: str, *tables: Mapping[str, str]) -> str:
    """Return a semicolon and the advice of the first table that has the name, or nothing."""
    found = next((table[name] for table in tables if name in table), None)
    return "" if found is None else f"; {as_text(found)}"


def advice_on_argument(name: str, function: Callable[..., Any], *tables: Mapping[str, str]) -> str:
    """Return the advice on an argument that a function does not take, or its most similar one."""
    if advice := advice_on(name, *tables):
        return f"{advice}."
    from difflib import get_close_matches  # only for an error

    close = get_close_matches(name, inspect.signature(function).parameters, 1, _SIMILAR)
    return f"; did you mean {close[0]!r}?" if close else ""


def explain_call(*tables: Mapping[str, str], otherwise: str = "") -> Callable[[F], F]:
    """Make a decorator that adds the advice on an unexpected argument to its error.

    Args:
        tables: Where to look up the argument; another is compared with those of the signature.
        otherwise: The advice on a call that fails for another argument.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                trace = error.__traceback__
                if trace is None or trace.tb_next is not None:  # the function itself raised it
                    raise
                unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
                text, advice = str(error).rstrip("."), ""
                if unexpected:  # without the suggestion of Python 3.13
                    text = text[: unexpected.end()]
                    advice = advice_on_argument(unexpected[1], function, *tables)
                advice = advice or (otherwise and f"; {otherwise}.")
                if not advice:
                    raise
                raise TypeError(f"{text}{advice}") from None

        return called  # type: ignore[return-value]

    return decorate


def explain_arguments(cls: type) -> None:
    """Let the constructor of a class of this library advise on unknown arguments."""
    if cls.__module__.startswith("composable.") and "__init__" in vars(cls):
        tables = [
            CLASS_ARGUMENTS[one.__name__] for one in cls.__mro__ if one.__name__ in CLASS_ARGUMENTS
        ]
        cls.__init__ = explain_call(*tables)(cls.__init__)  # type: ignore[misc]


def explain_attribute(owner: Any, name: str, table: Mapping[str, str]) -> Any:
    """Raise the AttributeError of a missing attribute, with advice: for `__getattr__`.

    A property that raised an AttributeError raises it again.
    """
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)
    raise AttributeError(
        f"{type(owner).__name__!r} object has no attribute {name!r}{advice_on(name, table)}",
        name=name,
        obj=owner,
    )
