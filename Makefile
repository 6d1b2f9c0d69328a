# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNEL := expert_kernels/flash_fwd_sm80/kernel.cu
SPEC := examples/gemma2_softcap_window.py
OUT := out/flash_fwd_sm80_gemma2.cu

.PHONY: demo test test-python test-extension lint extension bench clean

demo: $(STAMP)
	@mkdir -p out
	$(BIN)/cubridge adapt $(KERNEL) $(SPEC) -o $(OUT) --force

test: lint test-python test-extension extension

test-python: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-extension: node_modules/.installed
	npm run --silent compile
	npm test --silent

lint: $(STAMP) node_modules/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	npm run --silent typecheck
	npm run --silent lint

extension: node_modules/.installed
	npm run --silent compile
	npm run --silent package

bench: $(STAMP)
	$(BIN)/python -m bench.latency

# torch is pinned to a CPU-capable release first, so that the resolver does not fetch another build.
$(STAMP): pyproject.toml requirements/torch.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

node_modules/.installed: package.json package-lock.json
	npm ci --silent --no-audit --no-fund
	@touch $@

clean:
	rm -rf $(VENV) node_modules dist out build *.egg-info
