"""Hostile arguments of every public callable work or are refused by name."""

import warnings
from contextlib import suppress

import pytest

from tests.support.calls import public_calls, uncalled, unchanged_registries
from tests.support.campaign import FULL
from tools.fuzz_arguments import HOSTILE, fuzz

COUNT = len(HOSTILE) if FULL else 5  # for each argument
CALLS = {call.name: call for call in public_calls()}


def test_every_public_callable_is_fuzzed():
    assert not uncalled()


@pytest.mark.parametrize("name", CALLS)
def test_valid_arguments_are_accepted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = CALLS[name]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # AzureML's package is in no environment of the tests.
        missing = {ModuleNotFoundError} & set(call.errors)
        with unchanged_registries(), suppress(*missing):
            call.run(call.valid())


@pytest.mark.parametrize("name", CALLS)
def test_hostile_arguments_are_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faults = [str(fault) for *_, fault in fuzz(CALLS[name], count=COUNT) if fault]

    assert not faults
