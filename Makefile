# make demo       install what the demo needs, then compare methods on a small GPT; no downloads
# make demo-digits   the same, then train on digits with six methods, and without each
# make test       install everything, then run every check, exactly as CI does
#
# make CHECK      run one check: format lint types imports words docs shapes package tests
# make campaign   kill runs and forge checkpoints, many of each, try every way out of a run, and
#                 split every loss in every way, and find known speed-ups in simulated studies
# make deepspeed  install DeepSpeed, and run the tests that train with it
# make fix        format the code and apply the linter's automatic fixes
# make report-browser   open a report in headless Chromium (apt-get install chromium chromium-driver)
# make bench      measure the overhead of the Trainer over a plain loop
# make clean      remove the environment, the caches and what was built
#
# make test PYTHON=python3.12      use another Python (3.10 or newer)
# make test VENV=~/composable-env  create the environment elsewhere
# make test CONSTRAINTS=           use the newest versions, not those of constraints.txt

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= -c constraints.txt

# Tests come last, so that the report of pytest ends the output. They include `package`.
CHECKS = format lint types imports words docs shapes tests

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --no-input $(if $(MAKE_TERMOUT),,--quiet)
PYTEST = $(BIN)/pytest -q --tb=short
BEARTYPE = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

.PHONY: help demo demo-digits test $(CHECKS) package campaign deepspeed fix bench report-browser clean FORCE

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.ready-demo
	$(BIN)/python examples/demo.py

demo-digits: $(VENV)/.ready-demo
	$(BIN)/python examples/digits.py

test: $(VENV)/.ready
	@failed=; \
	for check in $(CHECKS); do \
	    printf '\n=== %s\n' $$check; \
	    $(MAKE) --no-print-directory $$check || failed="$$failed $$check"; \
	done; \
	[ -z "$$failed" ] || { printf '\nFAILED checks:%s\n' "$$failed"; exit 1; }

# ------------------------------------------------------------------------------------------------
# The checks

$(CHECKS) package fix: $(VENV)/.ready
# One thread: the workers of pytest share the cores, and the last bits depend on the number.
$(CHECKS) package campaign deepspeed: export OMP_NUM_THREADS = 1
$(CHECKS) package: export MPLBACKEND = Agg

format:
	$(BIN)/ruff format --check .
lint:
	$(BIN)/ruff check .
types:
	$(BIN)/mypy
imports:
	$(BIN)/lint-imports --no-logo
words:
	$(BIN)/codespell
	$(BIN)/python tools/check_words.py
	$(BIN)/towncrier build --draft --version unreleased
docs:
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
shapes:
	$(PYTEST) -n 2 tests/functional -m 'not compile' --hypothesis-profile=quick \
	    '--jaxtyping-packages=composable.functional,$(BEARTYPE)'
package:
	$(PYTEST) tests/test_package.py
tests:
	$(PYTEST) -n 2 --dist loadscope --durations=10

# ------------------------------------------------------------------------------------------------
# Other tasks

# Apart from `make test`, which runs a few of each.
campaign: $(VENV)/.ready
	$(BIN)/python -m tools.kill_campaign --runs 200
	$(BIN)/python -m tools.kill_campaign --back-ends 30
	CAMPAIGN=1 $(PYTEST) property_tests/test_ways_out.py property_tests/test_split_losses.py
	CAMPAIGN=1 $(PYTEST) property_tests/test_known_speedups.py
	CAMPAIGN=1 $(PYTEST) tests/distributed/test_meta_models.py -k whole_model
	$(BIN)/python -m tools.kill_shards --runs 100
	$(BIN)/python -m tools.fuzz_checkpoints --count 1000

# Apart from `make test`: its package is built from source, and its engine starts slowly.
deepspeed: export DS_ACCELERATOR ?= cpu
deepspeed: $(VENV)/.ready
	$(PIP) install $(CONSTRAINTS) -e '.[deepspeed]'
	$(PYTEST) tests/distributed/deepspeed_runs.py

fix:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready-demo
	$(BIN)/python benchmarks/overhead.py

report-browser: $(VENV)/.ready
	$(BIN)/python -m tools.check_report

clean:
	[ ! -f $(VENV)/.made-with ] || rm -rf $(VENV)
	rm -rf .*_cache .hypothesis docs/_build dist

# ------------------------------------------------------------------------------------------------
# The environment

INPUTS = $(VENV)/.made-with pyproject.toml constraints.txt composable/_version.py

# Everything includes what the demo needs.
$(VENV)/.ready: $(INPUTS)
	$(PIP) install $(CONSTRAINTS) -e '.[all]' --group dev
	@touch $@ $(VENV)/.ready-demo

$(VENV)/.ready-demo: $(INPUTS)
	$(PIP) install $(CONSTRAINTS) -e '.[demo]'
	@touch $@

# Recreated if the version of Python or the constraints differ from those recorded in the file.
$(VENV)/.made-with: FORCE
	@version=$$($(PYTHON) tools/python_version.py) || exit 1; \
	made_with="$$version $(CONSTRAINTS)"; \
	[ "$$made_with" != "$$(cat $@ 2>/dev/null)" ] || exit 0; \
	clear=; [ ! -f $@ ] || clear=--clear; \
	echo "Installing into $(VENV) (minutes the first time: torch is large)"; \
	$(PYTHON) -m venv $$clear $(VENV) && \
	$(PIP) install $(CONSTRAINTS) --upgrade 'pip>=25.1' && \
	echo "$$made_with" > $@
