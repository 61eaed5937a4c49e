"""Composer, called with `load_path` and its link to the last checkpoint, without `autoresume`."""

from functools import partial

from benchmarks.trainers import composer

version = composer.version
train = partial(composer.train, by_link=True)
