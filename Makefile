# `make demo` and `make test` are all that a newcomer needs; both set up .venv first.
# PYTHON=... chooses the interpreter that makes it. RUN=... uses an interpreter that has everything already
# (a GPU host without a network, say) and sets nothing up.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
# Files of tests run side by side, one a processor up to four; where there are GPUs, or an interpreter is given, one
# after the other: tests share the boards, and pytest-xdist may be missing. WORKERS=logical asks for it all the same.
ifdef RUN
SETUP :=
WORKERS ?= 0
else
RUN := $(VENV)/bin/python
SETUP := $(READY)
WORKERS ?= $(shell { nvidia-smi -L >/dev/null 2>&1 || test -e /dev/kfd; } && echo 0 || echo logical)
endif
SIDE_BY_SIDE = $(if $(filter-out 0,$(WORKERS)),--numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile)

.PHONY: demo test lint format setup clean
.DEFAULT_GOAL := demo

setup: $(SETUP)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ghostwatt needs Python 3.11 or newer; $(PYTHON) is older. Choose another: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(SETUP)
	@exec $(RUN) -m client demo $(if $(ONCE),--once)

test: $(SETUP)
	$(RUN) -m pytest $(SIDE_BY_SIDE) $(ARGS)

lint: $(SETUP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -c "from importlinter.cli import lint_imports_command as lint; lint()"

format: $(SETUP)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
