# make demo       install what the demo needs, then compare methods on a small GPT; no downloads
# make demo-digits   the same, then train on digits with six methods, and without each
# make test       install everything, then run every check, exactly as CI does
#
# make CHECK      run one check: format lint types imports words docs shapes simgpu package tests
# make test-changed   run the tests that the changes since main can reach: BASE=HEAD for what is not
#                 committed
# make campaign   run every case of every test, kill runs and forge checkpoints, many of each
# make test-simgpu   run what needs a GPU on two simulated ones
# make deepspeed  install DeepSpeed, and run the tests that train with it
# make ray        install Ray in an environment of its own, and run the tests that train with it
# make vision     install timm and torchvision in an environment of its own, and train their models
#                 with each method that changes layers
# make newest     run the tests that touch other packages, with the newest version of each
# make lowest     the same with the oldest versions that pyproject.toml allows
# make once       import every module, run the tests of the functions, and train, with PYTHON=
#                 the path of another interpreter, TORCH=2.8.0, or both
# make fix        format the code and apply the linter's automatic fixes
# make report-browser   open a report in headless Chromium (apt-get install chromium chromium-driver)
# make site-browser     open every page of the site there, on a wide screen and a phone
# make release    build what is uploaded into dist, and check it; the wheel runs the demo elsewhere
# make site       build the documentation with the outputs of its tutorials, which run in full
# make gpu        run what needs a GPU, and write docs/evidence/gpu: PART=overhead for one part,
#                 DEVICE=cpu SIZE=tiny for the code alone, VENV= for an environment that is there,
#                 WHEELS= for a folder of wheels that it lacks, MINUTES= for all parts together
# make bench      measure the overhead of the Trainer over a plain loop
# make clean      remove the environment, the caches and what was built
#
# make test PYTHON=python3.12      use another Python (3.10 or newer)
# make test VENV=~/composable-env  create the environment elsewhere
# make test CONSTRAINTS=           use the newest versions, not those of constraints.txt

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= -c constraints.txt

# One after the other, beside the workers of the tests, which include `package`: processes that
# wait for others leave the cores idle. `shapes` reads what Numba has compiled for `tests`.
CHECKS = format lint imports words types docs simgpu shapes
ALL = $(CHECKS) tests package

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --no-input $(if $(MAKE_TERMOUT),,--quiet)
PYTEST = $(BIN)/pytest -q --tb=short -rfEs
BEARTYPE = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

.PHONY: help demo demo-digits test $(ALL) test-changed campaign test-simgpu deepspeed ray vision newest lowest once foreign smoke fix gpu bench site report-browser site-browser release clean FORCE

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.ready-demo
	$(BIN)/python examples/demo.py

demo-digits: $(VENV)/.ready-demo
	$(BIN)/python examples/digits.py

test: $(VENV)/.ready
	@failed=$$(printf '%s\n' tests '$(CHECKS)' | xargs -P 2 -I {} sh -c \
	    'for check in {}; do case $$check in \
	        tests) $(MAKE) --no-print-directory tests >&2 || printf " tests";; \
	        *) said=$$($(MAKE) --no-print-directory $$check 2>&1) || printf " $$check"; \
	            printf "\n=== %s\n%s\n" $$check "$$said" >&2;; \
	    esac; done'); \
	[ -z "$$failed" ] || { printf '\nFAILED checks:%s\n' "$$failed"; exit 1; }

# ------------------------------------------------------------------------------------------------
# The checks

$(ALL) fix: $(VENV)/.ready
# One thread: the workers of pytest share the cores, and the last bits depend on the number.
$(ALL) test-changed campaign test-simgpu deepspeed: export OMP_NUM_THREADS = 1
$(ALL) test-changed campaign: export MPLBACKEND = Agg
# Without bytecode every process that a test or a demo starts would compile the package again.
$(ALL) campaign demo demo-digits: export PYTHONDONTWRITEBYTECODE =

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
# Without the theme, which `make site` has.
PLAIN = -t plain
# -E reads all pages: of those that it did not read, Sphinx forgets the index entries in the search.
docs:
	$(BIN)/sphinx-build -q -E -W --keep-going $(PLAIN) -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python -m tools.site_search docs/_build/html
# The tests of the functions, which `tests` leaves out.
shapes:
	$(PYTEST) tests/functional '--jaxtyping-packages=composable.functional,$(BEARTYPE)'
# Where the tests of GPUs run: two simulated ones, which tests/simgpu/README.md explains.
SIMULATED = $(PYTEST) -p tests.simgpu.plugin
simgpu:
	$(SIMULATED) tests/simgpu tests/gpu
package:
	$(PYTEST) tests/project/test_package.py
# Three workers, since tests that wait for processes would leave a core of two idle. worksteal: a
# part of the tests for each worker, in order, so that the tests of a file share fixtures.
tests: $(VENV)/.compiled
	$(PYTEST) -n 3 --dist worksteal --durations=10 --ignore=tests/functional

# ------------------------------------------------------------------------------------------------
# Other tasks

# By the imports of the files, in a part of the time of `make test`, which runs all.
test-changed: $(VENV)/.ready
	$(BIN)/python -m tools.changed_tests $(or $(BASE),main) -q --tb=short -rfEs -n 2 --dist worksteal

# Apart from `make test`, which runs a few of each: every case of every test, and more examples.
campaign: $(VENV)/.ready
	CAMPAIGN=1 HYPOTHESIS_PROFILE=thorough $(PYTEST) -n 2 --dist worksteal -m '' tests property_tests
	$(MAKE) test-simgpu
	$(BIN)/python -m tools.kill_campaign --kills 500
	$(BIN)/python -m tools.kill_campaign --loops 100
	$(BIN)/python -m tools.kill_campaign --back-ends 30
	$(BIN)/python -m tools.kill_campaign --remote 200
	$(BIN)/python -m tools.kill_shards --runs 100
	$(BIN)/python -m tools.hosts campaign 40
	$(BIN)/python -m tools.fuzz_checkpoints --count 1000

# Apart from `make test`, which runs a part of it: laws whose runs train on a simulated GPU, an
# accelerator that is not CUDA, and `make gpu` at its tiny size.
test-simgpu: simgpu
	TEST_DEVICE=cuda $(SIMULATED) -n 2 $(foreach law,$(LAWS),property_tests/test_$(law).py)
	SIMGPU=sim TEST_DEVICE=sim $(SIMULATED) -n 2 tests/simgpu
	$(SIMULATED) -m campaign tests/simgpu
LAWS = order independence resume determinism transparency splits step

# Apart from `make test`, which runs the tutorials for a few steps: here they run in full, for minutes.
site: $(VENV)/.ready
	$(BIN)/sphinx-build -q -W --keep-going -D nb_execution_mode=force -d docs/_build/executed \
	    docs docs/_build/site

# Apart from `make test`: its package is built from source, and its engine starts slowly.
deepspeed: export DS_ACCELERATOR ?= cpu
deepspeed: $(VENV)/.ready
	$(PIP) install $(CONSTRAINTS) -e '.[deepspeed]'
	$(PYTEST) tests/distributed/deepspeed_runs.py

# Apart from `make test`: its packages are large, and its processes start slowly.
ray:
	$(MAKE) $(VENV)-ray/.ready-demo VENV=$(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --quiet $(CONSTRAINTS) 'ray[train]' pytest
	$(VENV)-ray/bin/pytest -q -c /dev/null --rootdir . --noconftest --import-mode=importlib \
	    tests/distributed/ray_runs.py

# Apart from `make test`: torchvision requires one release of PyTorch, which is not that of
# constraints.txt, and training all models takes ten minutes.
vision: export OMP_NUM_THREADS = 1
vision:
	$(MAKE) $(VENV)-vision/.made-with VENV=$(VENV)-vision CONSTRAINTS=
	$(VENV)-vision/bin/python -m pip install --quiet torch==2.14.1 torchvision==0.29.1 timm pytest \
	    -e '.[fast]'
	$(VENV)-vision/bin/pytest -q -c /dev/null --rootdir . --noconftest --import-mode=importlib \
	    -o tmp_path_retention_policy=none \
	    tests/functional/augmentation_runs.py tests/models/vision_runs.py

# Apart from `make test`: environments of their own, with the PyTorch of constraints.txt.
TORCH = $(shell sed -n 's/^torch==//p' constraints.txt)
newest lowest: %: $(VENV)-%.txt
	rm -f $(VENV)-$@/.ready
	$(MAKE) foreign RUN=$@ VENV=$(VENV)-$@ CONSTRAINTS='-c $(VENV)-$@.txt $(UPGRADE)' \
	    $(if $(UPGRADE),UV=false)
newest: UPGRADE = --upgrade --upgrade-strategy eager
once: $(VENV)-uv/bin/uv
	echo 'torch==$(TORCH)' > $(VENV)-uv/constraints.txt
	$(COMPILE) --output-file $(VENV)-$@.txt pyproject.toml
	$(MAKE) smoke VENV=$(VENV)-$@ CONSTRAINTS='-c $(VENV)-$@.txt'

foreign smoke: export OMP_NUM_THREADS = 1
foreign smoke: export MPLBACKEND = Agg
foreign: $(VENV)/.ready
	$(PYTEST) -n 2 --dist worksteal -m 'foreign and not campaign' $(if $(filter lowest,$(RUN)),-W default)
	$(BIN)/python -m tools.versions $(RUN)
smoke: $(VENV)/.ready
	$(PYTEST) -n 2 --dist worksteal tests/functional README.md
	$(BIN)/python -m tools.versions --import

$(VENV)-newest.txt: constraints.txt
	grep '^torch==' $< > $@
# uv finds the versions, and pip installs them: pip takes half an hour to find those for another
# PyTorch. A NumPy that the oldest packages can use is named, since uv takes the oldest version of
# direct requirements alone.
COMPILE = $(VENV)-uv/bin/uv pip compile --quiet --constraint $(VENV)-uv/constraints.txt \
    --python $(PYTHON) --extra all --group dev
$(VENV)-lowest.txt: $(VENV)-newest.txt $(VENV)-uv/bin/uv pyproject.toml
	echo 'numpy>=2,<2.2' | cat $< - > $(VENV)-uv/constraints.txt
	$(COMPILE) --resolution lowest-direct --output-file $@ pyproject.toml
$(VENV)-uv/bin/uv:
	$(PYTHON) -m venv $(VENV)-uv
	$(VENV)-uv/bin/python -m pip install --quiet uv

fix:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# It installs nothing: a machine with a GPU has its own Python and PyTorch.
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
gpu:
	PYTHONPATH=. $(GPU_PYTHON) -m benchmarks.gpu --device $(or $(DEVICE),cuda) \
	    --size $(or $(SIZE),full) $(addprefix --part ,$(PART)) $(addprefix --output ,$(OUTPUT)) \
	    $(addprefix --wheels ,$(WHEELS)) $(addprefix --minutes ,$(MINUTES))

bench: $(VENV)/.ready-demo
	$(BIN)/python benchmarks/overhead.py

report-browser: $(VENV)/.ready
	$(BIN)/python -m tools.check_report
site-browser: PLAIN =
site-browser: docs
	$(BIN)/python -m tools.check_site docs/_build/html

# The source distribution holds the site, to read without a network.
release: $(VENV)/.ready
	rm -rf dist docs/_build
	$(MAKE) site
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	tar -tzf dist/*.tar.gz | grep -q '/docs/_build/site/index.html$$'
	$(BIN)/python -m tools.run_wheel dist

clean:
	[ ! -f $(VENV)/.made-with ] || rm -rf $(VENV)
	rm -rf .*_cache .hypothesis docs/_build dist $(foreach run,newest lowest once uv ray vision,$(VENV)-$(run)*)

# ------------------------------------------------------------------------------------------------
# The environment

INPUTS = $(VENV)/.made-with pyproject.toml constraints.txt composable/_version.py

# pip installs PyTorch, since its settings may name a build, and uv the rest, in a quarter of pip's
# time. Where uv can't, because the index is in pip's settings, pip does.
UV = $(BIN)/uv
define install
	$(PIP) install --no-compile $(CONSTRAINTS) torch uv
	$(UV) pip install $(if $(MAKE_TERMOUT),,--quiet) --python $(BIN)/python $(2) $(CONSTRAINTS) $(1) || \
	    $(PIP) install --no-compile $(CONSTRAINTS) $(1)
	@touch $@
endef

# Everything includes what the demo needs. Of its many modules a few are imported, and Python
# compiles these when they are. The workers of the demo, which start together, each would.
$(VENV)/.ready: $(INPUTS)
	$(call install,-e '.[all]' --group dev)
	@touch $(VENV)/.ready-demo

$(VENV)/.ready-demo: $(INPUTS)
	$(call install,-e '.[demo]',--compile-bytecode)

# In a new environment each worker of pytest would compile all that the tests import.
$(VENV)/.compiled: $(VENV)/.ready
	-@$(PYTEST) --collect-only --ignore=tests/functional > /dev/null
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
