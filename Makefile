# make train   creates .venv and trains the quickstart on real text: about five minutes on a laptop
# make test    everything that CI runs: lint, types, all tests
# make check   the everyday subset: lint, types, the tests that are not slow
# make bench   prints one JSON line per variant of the benchmark
#
# PYTHON=python3.12 picks another interpreter (3.11 or later), VENV=DIR another place for the environment,
# EXTRAS=dev,cuda13 more extras: with cuda13 the tests also compile for GPUs, which needs no GPU.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
RUN = $(VENV)/bin/python
INSTALL = $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
COMMA := ,
TEST_STAMP = $(VENV)/.installed-$(subst $(COMMA),-,$(EXTRAS))

.PHONY: train test check lint bench goldens

train: $(VENV)/.installed
	$(RUN) -m meshtrain.train --config configs/runs/quickstart.py --config.steps=540
	@echo && echo "The same run goes on under another layout: ZeRO-1 over all devices instead of ZeRO-3 x tensor parallelism." && echo
	$(RUN) -m meshtrain.train --config configs/runs/quickstart.py --layout configs/layouts/zero1.py

test: $(TEST_STAMP) lint
	$(RUN) -m pytest -n 2 --dist worksteal

check: $(TEST_STAMP) lint
	$(RUN) -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(TEST_STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(VENV)/.installed
	$(RUN) scripts/bench.py

goldens: $(TEST_STAMP)
	$(RUN) scripts/refresh_goldens.py

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing meshtrain and what it needs into $(VENV) ..."
	$(INSTALL) --editable .
	touch $@

$(TEST_STAMP): pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing meshtrain[$(EXTRAS)] and what it needs into $(VENV) ..."
	$(INSTALL) --editable '.[$(EXTRAS)]'
	touch $@
