# make demo   sets everything up, places a network, compares methods and writes out/report.html
# make test   sets everything up and runs every check that CI runs
# make docs   builds the documentation's site into out/site
# make wheels   builds an sdist and a manylinux wheel for this Python into out/wheels
# make sanitize   runs the compiled modules' tests under the address, undefined and thread sanitizers
# They need only python3 (3.11 or newer, with venv), a C++20 compiler and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard cpp/*.?pp cpp/*/*.?pp)

.PHONY: demo test docs wheels sanitize sanitize-address sanitize-thread format bench attack clean

# A model of 5.5 GiB on a GPU that may use 4 GiB of its memory.
DEMO := transformer:tokens=512 --on V100+cpu --limit gpu0=4GiB

demo: $(VENV)/demo.stamp
	@mkdir -p out
	$(BIN)/placewright place $(DEMO) -o out/plan.json --trace out/trace.json
	@echo
	$(BIN)/placewright compare $(DEMO) --report out/report.html

# The tests start some hundred processes: what the first compiles the others read.
test: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto --dist worksteal $(if $(WORKLOADS),--workloads $(WORKLOADS))

docs: $(VENV)/test.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# One wheel serves Python 3.12 and later; 3.11 has its own. The tag says which C library it needs.
wheels: $(VENV)/test.stamp
	rm -rf out/wheels out/linux-wheels
	$(BIN)/python -m build --outdir out/linux-wheels .
	PATH="$(BIN):$$PATH" $(BIN)/python -m auditwheel repair -w out/wheels out/linux-wheels/*.whl
	mv out/linux-wheels/*.tar.gz out/wheels

# Each build has a package of its own, which -S and PYTHONPATH put before the editable one. Python
# itself is not built with a sanitizer, so the runtime is preloaded; its own leaks are none of ours,
# and address randomisation is off because the thread sanitizer needs its addresses.
SANITIZED_TESTS := tests/simulator tests/transforms tests/scheduling
SITE_PACKAGES = $(shell $(BIN)/python -c 'import sys; print(":".join(p for p in sys.path if "site-packages" in p))')
RUNTIME = $(shell $${CXX:-c++} -print-file-name=lib$(1).so) $(shell $${CXX:-c++} -print-file-name=libstdc++.so)
SANITIZED_PYTEST = OMP_NUM_THREADS=1 PYTHONPATH=build/sanitize-$(1)/site:$(SITE_PACKAGES) \
  setarch -R $(BIN)/python -S -m pytest -q -p no:cacheprovider

sanitize: sanitize-address sanitize-thread

sanitize-address: build/sanitize-address/site
	LD_PRELOAD="$(call RUNTIME,asan)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(call SANITIZED_PYTEST,address) $(SANITIZED_TESTS)

sanitize-thread: build/sanitize-thread/site
	LD_PRELOAD="$(call RUNTIME,tsan)" TSAN_OPTIONS=exitcode=66:halt_on_error=0 \
	  $(call SANITIZED_PYTEST,thread) $(SANITIZED_TESTS)

build/sanitize-address/site: SANITIZERS := address,undefined
build/sanitize-thread/site: SANITIZERS := thread
build/sanitize-%/site: $(VENV)/test.stamp $(BUILD_INPUTS)
	rm -rf $@
	$(PIP) install --no-deps --no-build-isolation --target $@ . \
	  -C build-dir=build/sanitize-$* -C cmake.build-type=RelWithDebInfo -C install.strip=false \
	  -C cmake.define.PLACEWRIGHT_SANITIZE=$(SANITIZERS)

format: $(VENV)/test.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.simulator.speed

# The standing attack for as long as SECONDS says; it goes on where it stopped.
attack: $(VENV)/test.stamp
	@mkdir -p out
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m attack --seconds $(or $(SECONDS),90) --state ../out/attack.json

clean:
	rm -rf $(VENV) build out .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/demo.stamp: $(VENV)/pip.stamp $(BUILD_INPUTS)
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/test.stamp: $(VENV)/pip.stamp $(BUILD_INPUTS)
	$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/demo.stamp

$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "placewright needs Python 3.11 or newer: set PYTHON=python3.11, say"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || \
	  { echo "no C++ compiler was found: on Debian or Ubuntu run 'apt-get install g++', or set CXX"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python3 has no venv: on Debian or Ubuntu run 'apt-get install python3-venv'"; exit 1; }
	@touch $@
