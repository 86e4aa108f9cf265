# make demo | test | bench | mutants | exhaustive | asan; ARGS="..." is passed on to the program behind each.
# Each sets up all it needs: a .venv (or the active virtual environment), torch if there is none, the build
# tools, the built package. Needs only python3 (3.10 or later, with venv), a C++ compiler and make.

PYTHON ?= python3
VENV := $(or $(VIRTUAL_ENV),.venv)
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
CHECK_PYTHON := 'import sys; sys.exit(sys.version_info < (3, 10) and "make PYTHON=python3.10 (or later)")'
STAMPS := $(VENV)/transcast-stamps
SOURCES := CMakeLists.txt pyproject.toml setup.py third_party/finders.py $(shell find csrc)
OPS := amax cast quantize dequantize transpose act dact multi gemm
# What runs on the emulator alone has a sanitized build of its own.
ON_EMULATOR := tests/test_gemm_failures.py tests/test_gemm_plans.py tests/test_gemm_ways.py
OP_TESTS := $(filter-out $(ON_EMULATOR),$(wildcard $(foreach op,$(OPS),tests/test_$(op)*.py))) \
	tests/test_errors.py tests/test_memory.py tests/test_isa.py

.PHONY: demo test bench mutants exhaustive asan
.NOTPARALLEL:

demo: $(STAMPS)/demo
	$(PY) examples/train_lm.py $(ARGS)

# All tests on the CPU backend, then those of the ops on the CUDA sources, emulated.
test: $(STAMPS)/test
	$(PY) -m pytest -q $(or $(ARGS),tests)
	$(if $(ARGS),,$(PY) -m pytest -q --backend emu tests)

bench: $(STAMPS)/bench
	$(PY) benchmarks/run.py $(ARGS)

mutants: $(STAMPS)/test
	$(PY) tests/mutants.py $(ARGS)

exhaustive: $(STAMPS)/test
	$(PY) tests/exhaustive.py $(ARGS)

# The op tests on a CPU backend built with AddressSanitizer and UndefinedBehaviorSanitizer (GCC). The
# sanitizers must be in the process before Python, and libstdc++ with them, or they miss its exceptions. Leaks
# of Python's and torch's own are not ours to judge. Aborting makes Python name the test; --capture=sys lets
# the sanitizer's report through.
PRELOAD := $(foreach library,libasan.so libstdc++.so,$(shell $(CXX) -print-file-name=$(library)))
SANITIZED := LD_PRELOAD="$(PRELOAD)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1 \
	PYTHONPATH="$(CURDIR)/build/sanitize"
asan: $(STAMPS)/test
	TRANSCAST_SANITIZE=1 TRANSCAST_CUDA=0 $(PY) setup.py -q build --build-lib build/sanitize
	$(SANITIZED) $(PY) -m transcast.info | grep -e -fsanitize
	$(SANITIZED) $(PY) -m pytest -q --capture=sys $(or $(ARGS),$(OP_TESTS))
	$(if $(ARGS),,$(PY) tests/emu/build.py --sanitize)
	$(if $(ARGS),,$(SANITIZED) TRANSCAST_SANITIZE=1 $(PY) -m pytest -q --capture=sys --backend emu tests/test_cuda_kernels.py)

# The package with the requirements of one target, as pyproject.toml lists them. Editable, so that only
# compiled sources need a build.
$(STAMPS)/demo $(STAMPS)/test $(STAMPS)/bench: $(STAMPS)/tools $(SOURCES)
	@echo "building transcast and installing what 'make $(@F)' needs (a minute or two)"
	$(PIP) install --no-build-isolation -e '.[$(@F)]'
	$(PY) -m transcast.info
	@touch $@

$(STAMPS)/tools: $(PY)
	@mkdir -p $(@D)
	@$(PY) -c $(CHECK_PYTHON)
	$(PIP) install setuptools wheel cmake ninja pybind11
	@$(PY) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' || \
	  { echo "installing torch (once; it is large)"; $(PIP) install 'torch>=2.10'; }
	@touch $@

$(PY):
	@$(PYTHON) -c $(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
