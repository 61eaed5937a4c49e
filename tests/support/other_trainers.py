"""The names that other trainers have: tests look for an advice on each, and the guides list them.

By library and kind. The arguments are complete; methods, fields, classes and metrics are the usual
ones.
"""

NAMES = {
    "composer": {
        "arguments": """
            model train_dataloader train_dataloader_label train_subset_num_batches spin_dataloaders
            max_duration algorithms algorithm_passes optimizers schedulers scale_schedule_ratio
            step_schedulers_every_batch eval_dataloader eval_interval eval_subset_num_batches
            callbacks loggers run_name progress_bar log_to_console console_stream
            console_log_interval log_traces auto_log_hparams load_path load_object_store
            load_weights_only load_strict_model_weights load_progress_bar load_ignore_keys
            load_exclude_algorithms save_folder save_filename save_latest_filename save_overwrite
            save_interval save_weights_only save_ignore_keys save_num_checkpoints_to_keep
            save_metrics autoresume parallelism_config dist_timeout ddp_sync_strategy fsdp_config
            device precision precision_config device_train_microbatch_size
            accumulate_train_batch_on_tokens seed deterministic_mode profiler python_log_level
            compile_config
        """,
        "methods": """
            fit eval predict add_callback close save_checkpoint save_checkpoint_to_save_folder
            export_for_inference saved_checkpoints
            get_timeseries
        """,
        "state": """
            model optimizers schedulers batch outputs loss timestamp previous_timestamp max_duration
            device precision memory seed rank_zero_seed dataloader_len train_metrics eval_metrics
            train_metric_values eval_metric_values metric_outputs total_loss_dict algorithms
            callbacks evaluators run_name save_metrics load_path profiler
            device_train_microbatch_size fsdp_config fsdp_enabled tp_config device_mesh
            get_elapsed_duration stop_training batch_get_item batch_set_item get_model_state_dict
            state_dict
        """,
        "classes": """
            ComposerModel ComposerClassifier HuggingFaceModel DataSpec Evaluator DecoupledAdamW
            DecoupledSGDW FusedLayerNorm ExportForInferenceCallback LoadCheckpoint
            SystemMetricsMonitor TensorboardLogger CometMLLogger FileLogger WandBLogger MLFlowLogger
            apply_alibi apply_blurpool apply_channels_last apply_factorization
            apply_gated_linear_units apply_ghost_batchnorm apply_gradient_clipping
            apply_gyro_dropout apply_low_precision_layernorm apply_low_precision_groupnorm
            apply_squeeze_excite apply_stochastic_depth apply_weight_standardization augmix_image
            colout_batch compute_ema cutmix_batch cutout_batch freeze_layers mixup_batch
            randaugment_image resize_batch select_using_loss set_batch_sequence_length
            should_selective_backprop smooth_labels
            Algorithm Callback Event Precision State Time TimeUnit Timestamp
            Trainer CrossEntropy LanguageCrossEntropy LanguagePerplexity MaskedAccuracy dist
        """,
        "class arguments": """
            Algorithm.input_key Algorithm.target_key EMA.ema_decay SWA.device ColOut.resize_target
            ColOut.batch AugMix.augmentation_set RandAugment.augmentation_set
            StochasticDepth.target_layer_name StochasticDepth.stochastic_method
            LowPrecisionLayerNorm.apply_at LowPrecisionGroupNorm.apply_at
            CheckpointSaver.latest_filename CheckpointSaver.remote_file_name EarlyStopper.comp
            ThresholdStopper.comp ThresholdStopper.stop_on_batch OptimizerMonitor.batch_log_interval
            ActivationMonitor.ignore_module_types SpeedMonitor.time_unit RuntimeEstimator.time_unit
            HuggingFaceModel.tokenizer HuggingFaceModel.use_logits HuggingFaceModel.eval_metrics
            HuggingFaceModel.shift_labels HuggingFaceModel.peft_config
        """,
        "metrics": """
            loss/train/total MulticlassAccuracy CrossEntropy LanguagePerplexity
            LanguageCrossEntropy lr-SGD/group0
        """,
    },
    "lightning": {
        "arguments": """
            accelerator strategy devices num_nodes precision logger callbacks fast_dev_run
            max_epochs min_epochs max_steps min_steps max_time limit_train_batches
            limit_val_batches limit_test_batches limit_predict_batches overfit_batches
            val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps
            enable_checkpointing enable_progress_bar enable_model_summary accumulate_grad_batches
            gradient_clip_val gradient_clip_algorithm deterministic benchmark inference_mode
            use_distributed_sampler profiler detect_anomaly barebones plugins sync_batchnorm
            reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams model_registry
            train_dataloaders val_dataloaders datamodule ckpt_path
        """,
        "methods": """
            fit validate test predict training_step validation_step test_step predict_step
            configure_optimizers log log_dict save_checkpoint save_hyperparameters
            load_from_checkpoint to_onnx to_torchscript global_step current_epoch callback_metrics
            logged_metrics should_stop checkpoint_callback lightning_module optimizers
            is_global_zero world_size global_rank estimated_stepping_batches default_root_dir
        """,
        "classes": """
            LightningModule LightningDataModule ModelCheckpoint EarlyStopping LearningRateMonitor
            LearningRateFinder BatchSizeFinder DeviceStatsMonitor ThroughputMonitor
            StochasticWeightAveraging WeightAveraging EMAWeightAveraging
            GradientAccumulationScheduler LambdaCallback ModelSummary RichModelSummary
            RichProgressBar TQDMProgressBar OnExceptionCheckpoint Timer BackboneFinetuning
            BaseFinetuning BasePredictionWriter ModelPruning SpikeDetection WandbLogger LitLogger
        """,
        "class arguments": """
            CheckpointSaver.dirpath CheckpointSaver.every_n_epochs
            CheckpointSaver.every_n_train_steps CheckpointSaver.save_top_k CheckpointSaver.monitor
            CheckpointSaver.save_weights_only SWA.swa_epoch_start SWA.swa_lrs SWA.annealing_epochs
            SWA.annealing_strategy LRMonitor.logging_interval
        """,
        "metrics": "train_loss val_loss val_acc test_loss lr-SGD",
    },
    "huggingface": {
        "arguments": """
            model args data_collator train_dataset eval_dataset processing_class model_init
            compute_loss_func compute_metrics callbacks optimizers optimizer_cls_and_kwargs
            preprocess_logits_for_metrics output_dir per_device_train_batch_size num_train_epochs
            max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio
            optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
            gradient_accumulation_steps average_tokens_across_devices max_grad_norm
            label_smoothing_factor bf16 fp16 bf16_full_eval fp16_full_eval tf32
            activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
            gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode
            use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha
            torch_empty_cache_steps auto_find_batch_size logging_strategy logging_steps
            logging_first_step log_on_each_node logging_nan_inf_filter
            include_num_input_tokens_seen log_level log_level_replica disable_tqdm logging_dir
            report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
            eval_strategy eval_steps eval_delay per_device_eval_batch_size prediction_loss_only
            eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
            include_for_metrics batch_eval_metrics save_only_model save_strategy save_steps
            save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token
            hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
            load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip
            restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu
            accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers
            dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
            dataloader_multiprocessing_context dataloader_in_order remove_unused_columns
            label_names group_by_length train_sampling_strategy length_column_name
            ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph
            ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics do_train
            do_eval do_predict resume_from_checkpoint local_rank
            sortish_sampler predict_with_generate generation_max_length generation_num_beams
            generation_config
        """,
        "methods": """
            train evaluate predict training_step prediction_step compute_loss create_optimizer
            create_scheduler get_train_dataloader get_eval_dataloader add_callback pop_callback
            remove_callback log log_metrics save_metrics save_model save_state push_to_hub
            create_model_card hyperparameter_search is_world_process_zero is_local_process_zero
            floating_point_ops get_learning_rates
        """,
        "state": """
            epoch global_step max_steps num_train_epochs num_input_tokens_seen total_flos
            log_history best_metric best_global_step best_model_checkpoint is_local_process_zero
            is_world_process_zero is_hyper_param_search trial_name trial_params logging_steps
            eval_steps save_steps train_batch_size stateful_callbacks should_training_stop
        """,
        "classes": """
            TrainingArguments TrainerCallback EarlyStoppingCallback DefaultFlowCallback
            PrinterCallback ProgressCallback TensorBoardCallback WandbCallback MLflowCallback
            CometCallback AzureMLCallback ClearMLCallback CodeCarbonCallback DVCLiveCallback
            DagsHubCallback FlyteCallback KubeflowCallback NeptuneCallback SwanLabCallback
            TrackioCallback get_scheduler get_constant_schedule get_constant_schedule_with_warmup
            get_linear_schedule_with_warmup get_cosine_schedule_with_warmup
            get_cosine_with_hard_restarts_schedule_with_warmup
            get_polynomial_decay_schedule_with_warmup get_wsd_schedule
        """,
        "class arguments": """
            EarlyStopper.early_stopping_patience EarlyStopper.early_stopping_threshold
        """,
        "metrics": """
            loss grad_norm learning_rate epoch eval_loss eval_accuracy eval_runtime train_loss
            train_runtime train_samples_per_second train_steps_per_second total_flos
        """,
    },
    "accelerate": {
        "arguments": """
            device_placement split_batches gradient_accumulation_steps mixed_precision cpu
            dataloader_config deepspeed_plugin fsdp_plugin torch_tp_plugin megatron_lm_plugin
            rng_types log_with project_dir project_config gradient_accumulation_plugin
            step_scheduler_with_optimizer kwargs_handlers dynamo_backend dynamo_plugin
            deepspeed_plugins parallelism_config
        """,
        "methods": """
            prepare prepare_model prepare_optimizer prepare_data_loader prepare_scheduler backward
            accumulate no_sync sync_gradients optimizer_step_was_skipped clip_grad_norm_
            clip_grad_value_ unscale_gradients autocast gather gather_for_metrics reduce
            pad_across_processes split_between_processes join_uneven_inputs wait_for_everyone
            is_main_process is_local_main_process is_last_process main_process_first
            local_main_process_first on_main_process num_processes process_index
            local_process_index device save_state load_state skip_first_batches
            register_for_checkpointing register_save_state_pre_hook register_load_state_pre_hook
            save save_model unwrap_model get_state_dict free_memory clear set_trigger check_trigger
            init_trackers get_tracker log end_training print profile
        """,
    },
    "fabric": {
        "arguments": """
            accelerator strategy devices num_nodes precision plugins callbacks loggers
        """,
        "methods": """
            launch run setup setup_module setup_optimizers setup_dataloaders backward
            clip_gradients no_backward_sync autocast to_device device init_module init_tensor
            sharded_model all_gather all_reduce barrier broadcast rank_zero_first is_global_zero
            global_rank local_rank node_rank world_size save load load_raw call log log_dict
            seed_everything print
        """,
    },
    "torchtitan": {
        "arguments": """
            local_batch_size global_batch_size seq_len steps max_norm enable_cpu_offload dtype
            mixed_precision_param mixed_precision_reduce gc_freq warmup_steps decay_ratio decay_type
            min_lr_factor data_parallel_replicate_degree data_parallel_shard_degree
            fsdp_reshard_after_forward tensor_parallel_degree pipeline_parallel_degree
            context_parallel_degree expert_parallel_degree enable_async_tensor_parallel
            activation_checkpoint memory_budget keep_latest_k async_mode initial_load_path
            initial_load_in_hf last_save_model_only last_save_in_hf exclude_from_loading load_step
            enable_tensorboard enable_wandb log_freq enable_profiling enable_memory_snapshot
            profile_freq init_timeout_seconds train_timeout_seconds trace_buf_size deterministic
            detect_anomaly batch_invariant dump_folder
        """,
    },
    "keras": {
        "arguments": """
            optimizer loss loss_weights metrics weighted_metrics run_eagerly steps_per_execution
            jit_compile auto_scale_loss x y batch_size epochs verbose callbacks validation_split
            validation_data shuffle class_weight sample_weight initial_epoch steps_per_epoch
            validation_steps validation_batch_size validation_freq clipnorm clipvalue
            global_clipnorm
        """,
        "methods": """
            compile fit evaluate predict train_on_batch test_on_batch predict_on_batch train_step
            test_step save save_weights load_weights export summary stop_training
        """,
        "classes": """
            ModelCheckpoint BackupAndRestore EarlyStopping ReduceLROnPlateau LearningRateScheduler
            LambdaCallback TerminateOnNaN TensorBoard CSVLogger ProgbarLogger SwapEMAWeights
            RemoteMonitor
        """,
        "class arguments": """
            EMA.momentum CheckpointSaver.monitor CheckpointSaver.save_weights_only
            LabelSmoothing.label_smoothing
        """,
        "metrics": "loss val_loss acc val_accuracy learning_rate",
    },
    "timm": {
        "arguments": """
            data_dir dataset train_split val_split class_map dataset_download model pretrained
            initial_checkpoint resume no_resume_opt num_classes gp img_size input_size crop_pct mean
            std interpolation batch_size validation_batch_size channels_last torchscript fuser
            grad_checkpointing model_kwargs opt opt_eps opt_betas opt_kwargs momentum weight_decay
            clip_grad clip_mode layer_decay sched sched_kwargs lr lr_noise lr_noise_pct lr_noise_std
            lr_cycle_mul lr_cycle_decay lr_cycle_limit lr_k_decay warmup_lr min_lr epochs
            epoch_repeats start_epoch decay_milestones decay_epochs warmup_epochs cooldown_epochs
            patience_epochs decay_rate no_aug scale ratio hflip vflip color_jitter aa aug_repeats
            aug_splits jsd_loss bce_loss bce_target_thresh reprob remode recount resplit mixup
            cutmix cutmix_minmax mixup_prob mixup_switch_prob mixup_mode mixup_off_epoch smoothing
            train_interpolation drop drop_connect drop_path drop_block bn_momentum bn_eps sync_bn
            dist_bn split_bn model_ema model_ema_force_cpu model_ema_decay seed worker_seeding
            log_interval recovery_interval checkpoint_hist workers save_images amp amp_dtype
            apex_amp native_amp no_ddp_bb pin_mem no_prefetcher output experiment eval_metric tta
            local_rank use_multi_epochs_loader log_wandb torchcompile grad_accum_steps device
            config train_num_samples val_num_samples input_img_mode input_key target_key
            dataset_trust_remote_code pretrained_path in_chans fast_norm head_init_scale
            head_init_bias torchcompile_mode model_dtype synchronize_step device_modules
            layer_decay_min_scale layer_decay_no_opt_scale sched_on_updates lr_base lr_base_size
            lr_base_scale warmup_prefix train_crop_mode color_jitter_prob grayscale_prob
            gaussian_blur_prob bce_sum bce_pos_weight model_ema_warmup val_interval wandb_project
            wandb_tags wandb_resume_id train_img_sizes train_batch_sizes train_size_probs
            train_size_schedule train_size_schedule_spread train_size_random_mix
            train_batches_per_epoch variable_batch_loss_scale naflex_loader naflex_train_seq_lens
            naflex_max_seq_len naflex_patch_sizes naflex_patch_size_probs naflex_loss_scale
            naflex_patchify_channels_first kd_model_name kd_distill_type kd_loss_type
            distill_loss_weight task_loss_weight kd_temperature kd_student_feature_dim
            kd_teacher_feature_dim kd_token_distill_type
        """,
        "classes": """
            Mixup FastCollateMixup RandomErasing AugMixDataset ModelEma ModelEmaV2 ModelEmaV3
            LabelSmoothingCrossEntropy SoftTargetCrossEntropy JsdCrossEntropy NativeScaler
            CosineLRScheduler StepLRScheduler MultiStepLRScheduler PolyLRScheduler SummaryWriter
        """,
        "metrics": "train_loss eval_loss top1",
    },
}


def names(library: str, kind: str) -> list[str]:
    """Return the names of a kind, such as "arguments", that a library has."""
    return NAMES[library].get(kind, "").split()
