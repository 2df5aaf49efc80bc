# Needs make and Python >= 3.11; everything else is installed into .venv/ by the first target that you ask for.
# A second call finds it done. Another Python: make install PYTHON=/path/to/python3.12

.DEFAULT_GOAL := help
BIN := .venv/bin
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
ARGS ?=
FRAMEWORKS := build/frameworks
INSTALLED := .installed-$(firstword $(shell cksum <tests/frameworks/requirements.txt))
# Tests start hundreds of processes: compiling every module in each of them costs more than most tests.
unexport PYTHONDONTWRITEBYTECODE
# Half of the tests compute; the others run real trainings and mostly wait for them. A failure in one half does not keep
# the other from running.
REAL := tests/e2e tests/faults tests/unit/hooks/test_keras_fit.py
PURE := tests $(addprefix --ignore=,$(REAL) tests/frameworks)
# Where they are installed, tests of examples and pages run with them, too.
ifneq ($(wildcard $(FRAMEWORKS)/$(INSTALLED)),)
export RESHAPE_FRAMEWORKS ?= $(CURDIR)/$(FRAMEWORKS)/bin/python
endif
# $(call halves,which tests,options for those that wait)
halves = failed=; \
	$(BIN)/pytest -n 3 --dist loadscope -m "$(1)" $(PURE) || failed=1; \
	$(BIN)/pytest $(2) -m "$(1)" $(REAL) || failed=1; \
	test -z "$$failed" || { echo "Tests failed: see both summaries above." >&2; exit 1; }

.PHONY: help install demo test test-deep check sabotage soak bench bench-cluster cluster cluster-down test-cluster test-browser frameworks test-frameworks docs reference dist images lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

install: ## set up .venv/ with the versions of requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found: install it, or name it: make install PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) .ci/install.py

demo: install ## two jobs share four GPUs and reshape for one another (ARGS="--json" passes options on)
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("tensorflow") is None)'; \
	then $(BIN)/reshape demo --trainer keras $(ARGS); \
	else echo "TensorFlow is not installed here: the demo trains the same model with NumPy."; $(BIN)/reshape demo --trainer numpy $(ARGS); fi

test: install ## every promise that needs no cluster (some 5 min; ARGS="-k shim" passes options on)
	@$(if $(strip $(ARGS)),$(BIN)/pytest $(ARGS),$(call halves,not deep,-n 6 --dist loadgroup))

test-deep: install ## thousands of drawn states, long runs, TensorFlow trainings (10 min)
	@export RESHAPE_TEST_DEPTH=deep; $(if $(strip $(ARGS)),$(BIN)/pytest $(ARGS),$(call halves,deep,-n 3 --dist loadgroup))

check: install ## lint, format, types, layers, house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/test_tidy.py
	$(BIN)/python .ci/reference.py --check

sabotage: install ## break copies of the code line by line, and see whether the tests notice (some 3 min; ARGS="-k lease")
	@$(BIN)/python -m tests.saboteurs $(ARGS)

soak: install ## real trainings arrive while processes are killed or hang, clocks jump and others use GPUs (SECONDS=600, STORE=sqlite or mongodb, SEED=number)
	@$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),600) --store $(or $(STORE),sqlite) $(if $(SEED),--seed $(SEED))

bench: install ## measure, and print the numbers that README quotes
	@$(BIN)/python -m benchmarks $(ARGS)

bench-cluster: install ## the Slaml paper's PyTorch jobs on a real Volcano (20 min; ARGS="--jobs 3"), or EXPERIMENT=elastic-w1 in pods (25 min)
	@$(BIN)/python -m benchmarks.$(if $(EXPERIMENT),cluster_experiment $(EXPERIMENT),cluster_deadlines) $(ARGS)

cluster: install ## a real Kubernetes with Volcano on this machine, to play with (Linux, root, Go; cold builds take 10 min)
	@$(BIN)/python -m tests.cluster.bed up && $(BIN)/python -m tests.cluster.bed images

cluster-down: install ## end it, and remove all that it made
	@$(BIN)/python -m tests.cluster.bed down

test-cluster: install ## the tests on a real cluster: that one, or KUBECONFIG's with RESHAPE_TEST_CLUSTER=1 (ARGS="-m deep": the long ones)
	@$(BIN)/pytest tests/cluster --cluster -m "not deep" $(ARGS)

test-browser: install ## the dashboard in headless Chromium; leaves screenshots of all pages in build/screenshots
	@RESHAPE_TEST_BROWSER=1 $(BIN)/pytest tests/browser $(ARGS)

frameworks: $(FRAMEWORKS)/$(INSTALLED) ## a venv of real PyTorch, transformers, Lightning, JAX in build/frameworks (4 GB to download, 6 GB of disk)

# triton, which compiles for GPUs, is not needed on processors.
$(FRAMEWORKS)/$(INSTALLED):
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check install --quiet --no-cache-dir -r tests/frameworks/requirements.txt
	@$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes triton
	@touch $@

test-frameworks: install frameworks ## the hooks with them (some 25 min); then `make test` runs examples and pages with them, too
	@RESHAPE_FRAMEWORKS=$(CURDIR)/$(FRAMEWORKS)/bin/python $(BIN)/pytest -n 3 --dist loadgroup tests/frameworks $(ARGS)

docs: install ## the documentation as a site in build/site, without a warning (its commands are run by make test)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict -f .ci/mkdocs.yml && echo "Open build/site/index.html"

reference: install ## write the pages of docs/reference that are made from the code
	@$(BIN)/python .ci/reference.py

dist: install ## wheels and sdists of all distributions in dist/, each tried in fresh environments of Python 3.11 to 3.14 (10 min; ARGS=--build-only)
	@$(BIN)/python .ci/dist.py $(ARGS)

images: ## the image for amd64 and arm64 with a list of what is in it: make images NAME=registry.example.com/ml/volcano-reshape PUSH=1
	@test -n "$(NAME)" || { echo "Say where it shall go: make images NAME=registry.example.com/ml/volcano-reshape" >&2; exit 1; }
	@$(PYTHON) .ci/images.py $(NAME) $(if $(ARCHITECTURES),--architectures $(ARCHITECTURES)) $(if $(PUSH),--push) $(if $(ARGS),-- $(ARGS))

lock: ## write requirements.lock anew from pyproject.toml (needs uv)
	@command -v uv >/dev/null || { echo "uv was not found: install it (pip install uv) and run make lock again" >&2; exit 1; }
	uv pip compile --universal --python-version 3.11 --extra dev --generate-hashes --no-emit-index-url --no-emit-find-links -o requirements.lock pyproject.toml

clean: ## remove .venv/ and everything that was built
	rm -rf .venv build dist reshape-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
