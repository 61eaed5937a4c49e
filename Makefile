# Every target does what `python run.py <target>` does, for those who like make.
#
#   make demo                 set up, then train on digits; no data is downloaded
#   make test                 set up, then run every check, exactly as CI does
#
#   make test PYTHON=python3.12      with another Python (3.10 or newer)
#   make test VENV=~/composable-env  with the environment elsewhere
#   make test CONSTRAINTS=           with the newest versions, not the pinned ones

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= -c constraints.txt
export VENV CONSTRAINTS

TARGETS = demo test docs bench format setup clean

.PHONY: help $(TARGETS)
help:
	@$(PYTHON) run.py
$(TARGETS):
	@$(PYTHON) run.py $@
