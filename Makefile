# Every target sets itself up: the first one called makes .venv and compiles the extensions, and
# they are compiled again when a .pyx or .pxd has changed.  Nothing is installed outside .venv.
#
#   make demo PYTHON=python3.12      with a Python of your choice (make clean first)
#   make test ARGS='-k route -x'     more words for pytest
#   make bench CORPUS=text8.gz       another corpus
#   make wheels PYTHONS=python3.12   for these Pythons instead of all that are here

PYTHON ?=
PYTHONS ?=
ARGS ?=
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test test-all test-night test-rooms test-torch test-browser test-debian test-hosts test-numbers test-wheels wheels sanitize lint docs bench bench-quick clean

VENV := .venv
BIN := $(VENV)/bin
# setup.py makes _jobs.pxd, and copies of a source as _kernels_*.pyx.
SOURCES := setup.py pyproject.toml tools/stubs.py tools/jobs_pxd.py \
	$(filter-out snailps/_kernels_%.pyx snailps/kernels/_jobs.pxd, \
	$(shell find snailps -name '*.pyx' -o -name '*.pxd' -o -name '*.h'))

DATA := $(SNAILPS_DATA)
CORPUS ?= $(if $(DATA),$(DATA)/words/text8like.txt.gz)
MODEL ?= fasttext
# Word lists are judged with where they are there.
JUDGES := $(if $(DATA),$(foreach f,$(wildcard $(DATA)/words/EN-*.txt),--similarity $(f)) \
	$(foreach f,$(wildcard $(DATA)/words/questions-words.txt),--analogies $(f)))

# Where it is set, each process of the tests would compile all of them anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@echo "make <target>; the first one takes a minute or two: it makes $(VENV) and compiles"
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

demo: $(VENV)/.made-run ## train word vectors on a small cluster: half a minute on 2 cores
	@$(BIN)/snailps demo $(ARGS) </dev/null

# One more at a time than there are cores: many wait, for processes or for time to pass.
PYTEST := $(BIN)/python -m pytest --dist worksteal \
	-n $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 1 : 9)))
# What waits comes first, so that others compute meanwhile.
SHORT := tests/cluster $(wildcard tests/sim) tests/unit

check: lint $(VENV)/.made-test ## lint, types and tests/unit: a minute and a half on 2 cores
	@$(PYTEST) tests/unit $(ARGS) </dev/null

test: $(VENV)/.made-test ## tests of modules, and of simulated and real clusters: three minutes on 2 cores, five on slow ones
	@$(PYTEST) --smoke $(SHORT) $(ARGS) </dev/null

test-all: $(VENV)/.made-test ## those, more clusters, and tests of faults, fuzzing and the pages: ten minutes on 2 cores
	@$(PYTEST) tests/faults tests/fuzz $(SHORT) tests/repo $(ARGS) </dev/null

# What cannot be imported is in tools/rooms.py; which tests remain, in tests/support/without.py.
test-rooms: $(VENV)/.made-test ## the core's tests without products, and a few of each product without the others: a minute
	@$(PYTEST) --smoke --without all tests/unit tests/sim $(ARGS) </dev/null
	@grep -v '^#' tests/products.txt | while read -r room files; do \
		echo "$$room alone"; \
		$(BIN)/python -m pytest -q --product "$$room" $$(printf 'tests/unit/test_%s.py ' $$files) \
			$(ARGS) </dev/null || exit 1; \
	done

# For hours: parts of up to 40 minutes, which can be resumed.  ARGS=--list names them.
test-night: $(VENV)/.made-test ## what .ci/run leaves out: rounds under load, walks, storms, fuzzing
	@NIGHT_PYTEST='$(PYTEST)' NIGHT_TESTS='--smoke $(SHORT)' $(BIN)/python -m tests.night $(ARGS) </dev/null

test-numbers: $(VENV)/.made-test ## bounds of floats as on an old processor; of 15 in ARGS='numbers' of test-night
	@$(BIN)/python -m tests.night.numbers short build/numbers/short -- $(PYTEST) $(ARGS) </dev/null

# Not among the others: they make hosts, as root, and install what that takes.
test-hosts: $(VENV)/.made-test ## tests on separate hosts (root, Debian or Ubuntu; else skipped)
	@tests/hosts/install </dev/null
	@$(BIN)/python -m pytest tests/hosts $(ARGS) </dev/null

# Not among the others: an arm64 Python and its packages, some 300 MB in build/arm64, are downloaded.
test-arm64: $(VENV)/.made ## compiled parts on arm64, under qemu (Debian; root where qemu is missing)
	@tests/arm64/run build/arm64 $(ARGS) </dev/null

# Not among the others: makes machines in build/debian, 1.5 GB each, as root; ARGS=forky for one release.
test-debian: ## make demo, test and wheels on fresh Debian machines of several Pythons (root; else skipped)
	@tests/debian/run build/debian $(ARGS) </dev/null

# Not among the others, which skip them: it installs PyTorch, a quarter of a gigabyte.
TORCH := torch==2.13.0

test-torch: $(VENV)/.made-torch ## tests of snailps.torch, with PyTorch: two minutes on 2 cores
	@$(PYTEST) tests/unit/test_torch_*.py tests/cluster/test_torch_*.py \
		tests/unit/test_docstrings.py $(ARGS) </dev/null

# Not among the others: it needs a Chromium.  SNAILPS_SCREENSHOTS=DIR keeps what it looks like.
test-browser: $(VENV)/.made-test ## the live page in a real Chromium (skipped where there is none)
	@tests/browser/install </dev/null
	@$(BIN)/python -m pytest tests/browser $(ARGS) </dev/null

sanitize: $(VENV)/.made-test ## compiled parts under gcc's sanitizers (ARGS=short: two minutes)
	@tests/sanitize $(ARGS) </dev/null

WHEELS := $(BIN)/python tools/wheels.py $(foreach python,$(PYTHONS),--python '$(python)')

wheels: $(VENV)/.made ## wheels in dist/, for each Python 3.10 to 3.14 that is here
	@$(WHEELS) $(ARGS) </dev/null

test-wheels: $(VENV)/.made ## install each of dist/ where no compiler is, and run a smoke test
	@$(WHEELS) --try $(ARGS) </dev/null

SCRIPTS := .ci/run tests/arm64/run tests/browser/install tests/debian/run tests/hosts/install tests/sanitize $(wildcard findings/*.sh) $(shell grep -l '^\#!.*sh$$\|^\# shellcheck shell' -r tools)

lint: $(VENV)/.made-lint ## ruff (rules and layout), mypy, shellcheck
	@$(BIN)/ruff check . </dev/null
	@$(BIN)/ruff format --check . </dev/null
	@$(BIN)/python tools/stubs.py . </dev/null
	@$(BIN)/python tools/ratchet.py . </dev/null
	@$(BIN)/mypy </dev/null
	@$(BIN)/shellcheck -x $(SCRIPTS) </dev/null

# Warnings are errors, and so are links that lead nowhere; ARGS='-b linkcheck' asks the web, too.
docs: $(VENV)/.made-docs ## the documentation as a site, in build/site
	@$(BIN)/python -m sphinx -W --keep-going -q -c docs/site . build/site $(ARGS) </dev/null
	@echo "open build/site/index.html"

bench: $(VENV)/.made-run ## speed, memory and quality beside fastText and gensim
	@test -f '$(CORPUS)' || { echo "no corpus$(if $(CORPUS), at $(CORPUS)): make bench CORPUS=FILE, or set SNAILPS_DATA" >&2; exit 2; }
	@$(BIN)/python bench/words.py --corpus '$(CORPUS)' --model $(MODEL) $(JUDGES) --json --table \
		$(ARGS) </dev/null

bench-quick: $(VENV)/.made-run ## the main ratios in ten minutes, kept in bench/history.jsonl
	@$(BIN)/python bench/quick.py $(ARGS) </dev/null

# What make has made, and nothing of a user's: out/ and collected/ have models.
BUILT := $(VENV) .bench-venv .bench-venv-graphs build dist *.egg-info snailps/_kernels_*.pyx \
	.pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

clean: ## remove what was built, the environments included; it names what it removes
	@for path in $(BUILT); do if [ -e "$$path" ]; then echo "removing $$path"; rm -rf "$$path"; fi; done
	@echo "removing what was compiled below snailps/, and caches of Python"
	@find snailps -name '*.so' -delete -o -name '*.c' -delete -o -name '*.cpp' -delete -o -name '*.pyi' -delete
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up ------------------------------------------------------------------------------------
# A Python will do that is 3.10 to 3.14 and has venv, ensurepip and the C headers.  The
# distribution's own python3 comes first: its headers are the ones most likely to be there.
define find_python
candidates='$(PYTHON)'; \
test -n "$$candidates" || candidates='python3 python3.14 python3.13 python3.12 python3.11 python3.10'; \
missing=''; chosen=''; \
for p in $$candidates; do \
  command -v "$$p" >/dev/null || continue; \
  lack=$$("$$p" -c "$$check" 2>&1 </dev/null) && { chosen=$$p; break; }; \
  missing="$$missing  $$p: $$lack"$$'\n'; \
done; \
if test -z "$$chosen"; then \
  { echo "No usable Python 3.10 to 3.14 among: $$candidates"; printf '%s' "$$missing"; \
    echo "On Debian or Ubuntu: apt-get install python3-venv python3-dev gcc g++"; \
    echo "Another Python: make ... PYTHON=/path/to/python3"; } >&2; exit 2; \
fi
endef

define python_check
import importlib.util as u, os, sys, sysconfig
v = sys.version_info[:2]
if not (3, 10) <= v <= (3, 14): sys.exit("is Python %d.%d" % v)
if sysconfig.get_config_var("Py_GIL_DISABLED"): sys.exit("is free-threaded, which is not supported")
for m in ("venv", "ensurepip"):
    if u.find_spec(m) is None: sys.exit("has no module " + m + " (package python%d.%d-venv)" % v)
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    sys.exit("has no C headers (package python%d.%d-dev)" % v)
endef
export check = $(python_check)

# Of what is installed a third is ever imported, and compiled then.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --no-compile
comma := ,
BROKEN := { echo "The installation failed, see above.  It needs a C and a C++ compiler, and" \
	"PyPI or a mirror of it.  On Debian or Ubuntu: apt-get install python3-dev gcc g++" >&2; exit 1; }

$(VENV)/.made:
	@$(find_python); \
	for c in $${CC:-cc} $${CXX:-c++}; do command -v $${c%% *} >/dev/null || { \
	  echo "No compiler $$c.  On Debian or Ubuntu: apt-get install gcc g++" >&2; exit 2; }; done; \
	echo "making $(VENV) with $$chosen ($$($$chosen -V))"; \
	rm -rf $(VENV); \
	"$$chosen" -m venv $(VENV) </dev/null || { rm -rf $(VENV); echo "$$chosen -m venv failed." \
	  "On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@touch $@

# The same release on each machine: what it computes is compared with ours to the bit.
$(VENV)/.made-torch: $(VENV)/.made-test
	@$(PIP) '$(TORCH)' </dev/null || $(BROKEN)
	@touch $@

# Packages of the project and of the extras that are named.
define python_packages
import sys
try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(p for name in sys.argv[1:] for p in extras[name]), sep="\n")
endef
export packages = $(python_packages)

# The build has its tools from .venv: in an environment of its own, which pip would make each time,
# they are newer than all that is compiled, and that would be compiled again.
# .made-run is the package alone, compiled for this machine (setup.py), .made-test and .made-lint
# have the extra of that name as well, .made-lint,test those two.
# Packages arrive while compilers run; the last pip finds both, and installs what refers to here.
# fasttext-wheel has no wheels for Python 3.13 and later, and GCC 13 and later miss an include in its source.
EXTRAS = $(filter-out run,$(subst $(comma), ,$*))
$(VENV)/.made-%: $(VENV)/.made $(SOURCES)
	@echo "installing snailps$(patsubst %, and what it takes to %,$(filter-out run,$*)), compiling what has changed ..."
	@sed -n '/^requires = /s/[^"]*"\([^"]*\)"[^"]*/\1 /gp' pyproject.toml | xargs $(PIP) || $(BROKEN)
	@$(if $(EXTRAS),,export SNAILPS_BUILD=here;) log=$(VENV)/build.log; set -o pipefail; \
	$(BIN)/python setup.py -q build_ext --inplace >$$log 2>&1 </dev/null & compiler=$$!; \
	trap 'kill $$compiler' EXIT; \
	$(BIN)/python -c "$$packages" $(EXTRAS) | CXXFLAGS="$$CXXFLAGS -include stdint.h" $(PIP) -r /dev/stdin; installed=$$?; \
	wait $$compiler; compiled=$$?; trap - EXIT; \
	test $$compiled = 0 || { cat $$log >&2; $(BROKEN); }; \
	test $$installed = 0 && $(PIP) --no-build-isolation -e '.$(patsubst %,[%],$(filter-out run,$*))' </dev/null || $(BROKEN)
	@touch $(addprefix $(VENV)/.made-,run $(subst $(comma), ,$*)) $@
