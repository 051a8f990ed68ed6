# The commands of a working day. `make demo` and `make test` need nothing but Python >= 3.11 and make.
# PORT=8080 chooses the demo's port, PYTHON=python3.12 the Python that .venv is made from,
# ARGS="tests/core -k period" what `make test` runs.

VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
ARGS ?=
WORKERS ?= 2

# What `check --deploy` looks at: a production start, with values that are nobody's.
PRODUCTION := GPUPOOL_EMBEDDED= GPUPOOL_DEBUG= GPUPOOL_DEMO= GPUPOOL_URL=https://gpupool.example \
	GPUPOOL_SECRET_KEY=kq7-Zw3_pT9xLm2Rv8sNc4Yb6Hd1Gf5Ja0Ue7Xo3Wi9Qz2Kt8Mv \
	GPUPOOL_TOKEN_PEPPER=Pb5_rT8wXn3Kc6-Vm1Zs9Lq4Hd7Jg2Fy0 \
	DATABASE_URL=postgresql://gpupool:nobody@db.invalid/gpupool REDIS_URL=redis://:nobody@redis.invalid/0

COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --quiet

.PHONY: help install demo test check bench lock clean

help:
	@echo "make install   the environment in $(VENV)"
	@echo "make demo      everything on this machine, at http://127.0.0.1:$(PORT)"
	@echo "make test      every test"
	@echo "make check     linters, types, contracts, migrations, production settings"
	@echo "make bench     every benchmark; fails if one misses its goal"

install: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	@.ci/install $(VENV)
	@touch $@

demo: install
	@exec $(BIN)/python -m portal.demo --port $(PORT)

test: install
	@GPUPOOL_EMBEDDED=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	GPUPOOL_EMBEDDED=1 $(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/djlint templates --check --lint --quiet
	GPUPOOL_EMBEDDED=1 $(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(PRODUCTION) $(BIN)/python manage.py check --deploy --fail-level WARNING

bench: install
	@GPUPOOL_EMBEDDED=1 $(BIN)/python -m bench

# Pins what pyproject.toml asks for, with hashes; names no index. The second is the container image's,
# the third a node's, also for a folder that is carried to where there is no network (docs/agent.md).
lock:
	$(COMPILE) --all-extras --upgrade pyproject.toml -o requirements.lock
	$(COMPILE) --extra portal --extra agent -c requirements.lock pyproject.toml -o deploy/requirements.lock
	$(COMPILE) --extra agent -c requirements.lock pyproject.toml -o deploy/agent.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
