# Everything sets itself up: a machine needs Python 3.11 or newer, and make.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
DEMO := .venv-demo
DOCS := .venv-docs
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := UV_CUSTOM_COMPILE_COMMAND="make image-lock" $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-annotate --only-binary :all: --python-version 3.13 --python-platform x86_64-manylinux_2_28
ARGS ?=
ENGINE ?= sqlite

.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz fuzz-gateway histories fairness simulate conformance test-kills test-elections lint fmt bench soak soak-celery scale bench-smoke docs docs-pages pictures docs-check client-typescript clients ci image-lock clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv with all that development needs

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Laneway needs Python 3.11 or newer: none was found; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

demo: $(DEMO)/.ready ## 1,000 merchants, one floods, one fails: half a minute in the terminal; ENGINE=valkey or postgres on a server that it starts
	$(DEMO)/bin/laneway demo --engine $(ENGINE) $(ARGS)

$(DEMO)/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Laneway needs Python 3.11 or newer: none was found; set PYTHON=/path/to/python"; exit 1; }
	@echo "installing what the demo needs, without development tools, into $(DEMO) ..."
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $(DEMO)/.ready

test: $(READY) ## all tests; make test ARGS="tests/conformance -k rate" for some
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

fuzz: $(READY) ## 10,000 random endings of handlers on each engine (a while), random texts and cron lines; FUZZ_SEED=7 repeats one, FUZZ_ENDINGS=50000 for more
	FUZZ_ENDINGS=$${FUZZ_ENDINGS:-10000} $(BIN)/python -m pytest -s -p no:xdist tests/poison $(ARGS)
	HYPOTHESIS_PROFILE=default $(BIN)/python -m pytest tests/unit/test_printable.py tests/schedules/test_times.py

fuzz-gateway: $(READY) ## 100,000 random requests to the HTTP API, and 100 for each operation by its schema; FUZZ_SEED=7 repeats some
	GATEWAY_FUZZ=$${GATEWAY_FUZZ:-100000} $(BIN)/python -m pytest -s -p no:xdist --timeout 3600 tests/gateway/test_load.py -k random $(ARGS)
	LANEWAY_EXAMPLES=$${LANEWAY_EXAMPLES:-100} $(BIN)/python -m pytest -n auto --timeout 3600 tests/gateway/test_openapi.py tests/gateway/dashboard/test_patches.py $(ARGS)

histories: $(READY) ## 500 random histories on each engine, in lockstep with the model (an hour); LANEWAY_HISTORIES=50 for fewer
	LANEWAY_HISTORIES=$${LANEWAY_HISTORIES:-500} $(BIN)/python -m pytest -s -n auto --timeout 36000 tests/stateful tests/sharded/test_shared_limits.py tests/working/test_locality.py $(ARGS)

fairness: $(READY) ## 10,000 random combinations of limits on the model and 1,000 on each engine, compared with fair rates (hours); LANEWAY_SEED=7 repeats some
	LANEWAY_FAIRNESS=1 $(BIN)/python -m pytest -s -n auto --timeout 36000 tests/fairness $(ARGS)

simulate: $(READY) ## 1,000 random fleets with crashes, lost answers, clocks that jump and shards that move, in virtual time (an hour); LANEWAY_SEED=7 repeats some
	LANEWAY_SIMULATE=1 $(BIN)/python -m pytest -s -n auto --timeout 36000 tests/simulation $(ARGS)

conformance: $(READY) ## the whole conformance suite on every way to connect; make test leaves out repetitions
	LANEWAY_CONFORMANCE=1 $(BIN)/python -m pytest -n auto tests/conformance $(ARGS)

test-kills: $(READY) ## publishers, workers, spools and stores that are killed at random moments, many more rounds than in make test
	LANEWAY_KILLS=200 LANEWAY_FLOW_KILLS=60 $(BIN)/python -m pytest -n auto --timeout 3600 tests/kill tests/tasks/test_flows.py::test_flows_go_on_through_kills $(ARGS)

test-elections: $(READY) ## holders that die, stop and step down, with 50 candidates, many more successions than in make test
	LANEWAY_SUCCESSIONS=300 LANEWAY_CANDIDATES=50 $(BIN)/python -m pytest -s --timeout 3600 tests/cluster/test_successions.py $(ARGS)

lint: $(READY) ## ruff, mypy, pyright, the layers, the size of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v node >/dev/null 2>&1; then echo $(BIN)/pyright; PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright; \
	else echo "pyright: left out, it needs node (mypy has read the same tests of the types)"; fi
	$(BIN)/lint-imports --no-cache
	$(BIN)/python lint/size.py

fmt: $(READY) ## format, and fix what ruff can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(READY) ## measure every published figure, beside the peers (a while); ENGINE=valkey
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
	@if command -v npm >/dev/null 2>&1; then npm install --prefix bench/node --no-package-lock --no-audit --no-fund --loglevel=error; \
	else echo "the peers on Node are left out: they need npm"; fi
	$(BIN)/python -m bench.all --engine $(ENGINE) $(ARGS)

soak: $(READY) ## an hour at half the highest rate: does anything grow? ENGINE=valkey, ARGS="--minutes 10"
	$(BIN)/python -m bench.soak --engine $(ENGINE) $(ARGS)

soak-celery: $(READY) ## an hour of Celery, with killed workers and a restarted server: is a task lost? ARGS="--minutes 15 --store sqlite"
	$(BIN)/python -m tests.contrib.celery_soak $(ARGS)

scale: $(READY) ## long runs (hours): 10^8 topics over a lifetime, 10^8 messages that wait in SQLite, 10^7 in PostgreSQL; TOPICS=1e6 MESSAGES=1e6 SERVER_MESSAGES=1e5 for less
	$(BIN)/python -m bench.lifetime --topics $${TOPICS:-1e8} $(ARGS)
	$(BIN)/python -m bench.backlog --topics 1e6 --messages $${MESSAGES:-1e8} $(ARGS)
	$(BIN)/python -m bench.backlog --engine postgres --topics 1e6 --messages $${SERVER_MESSAGES:-1e7} $(ARGS)

bench-smoke: $(READY) ## each benchmark once, small: they still run
	$(BIN)/python -m bench.all --smoke $(ARGS)

docs: $(DOCS)/.ready docs-pages ## build the documentation site in site/
	$(DOCS)/bin/zensical build --clean --strict

$(DOCS)/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Laneway needs Python 3.11 or newer: none was found; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $(DOCS)/.ready

docs-pages: $(READY) ## write the generated pages of docs/reference/
	$(BIN)/python -m docs_tools.generate

pictures: $(READY) ## take the pictures of docs/dashboard/ again: every page, light and dark, wide and narrow; needs chromium
	$(BIN)/python -m docs_tools.pictures docs/dashboard

docs-check: $(READY) ## fail on stale generated pages and broken links
	$(BIN)/python -m docs_tools.generate --check
	$(BIN)/python -m docs_tools.check

client-typescript: ## generate clients/typescript from the API's description, with npm
	npm install --prefix clients/typescript --no-package-lock --no-audit --no-fund --loglevel=error
	npm run --prefix clients/typescript generate
	npm run --prefix clients/typescript build

clients: $(READY) client-typescript ## generate clients/ from the API's description, with npm and Java
	$(BIN)/python -m pip install --quiet --disable-pip-version-check openapi-generator-cli==7.26.0
	$(BIN)/openapi-generator-cli generate -g go -i docs/reference/openapi.json -o clients/go/laneway --additional-properties=packageName=laneway,withGoMod=false --global-property=apiTests=false,modelTests=false,apiDocs=false,modelDocs=false

ci: ## what CI runs
	bash .ci/run

image-lock: $(READY) ## choose the versions of the packages in the image of deploy/ again
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOCK) pyproject.toml --extra gateway --extra metrics --extra postgres --extra push --extra valkey -o deploy/requirements.txt
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')" | $(LOCK) - -o deploy/requirements-build.txt

clean: ## remove what make made
	rm -rf $(VENV) $(DEMO) $(DOCS) site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results
