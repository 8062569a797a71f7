# Each target sets up what it needs; repeated runs skip the setup.
#   make setup PYTHON=python3.13     another interpreter, for a new .venv
#   make test ARGS="-k burst -x"     arguments for the target's command

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.kerf-setup
TRAIN_STAMP := $(VENV)/.kerf-setup-train
UV := $(BIN)/uv

# Everything runs in .venv, whatever environment is active in the caller's shell.
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH
unexport PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIRE_VIRTUALENV PIP_PYTHON PIP_CONSTRAINT PIP_REQUIREMENT
unexport PIP_NO_DEPS PIP_DRY_RUN PIP_NO_BINARY PIP_BUILD_CONSTRAINT
# Without compiled modules on disk, each of the tests' hundreds of Kerf processes would spend seconds on compiling.
unexport PYTHONDONTWRITEBYTECODE
unexport UV_PYTHON UV_SYSTEM_PYTHON UV_TARGET UV_PREFIX UV_CONSTRAINT UV_OVERRIDE UV_NO_BINARY UV_PROJECT_ENVIRONMENT
# uv does not read pip's variables: pass pip's mirror and certificate on to uv.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif

.DELETE_ON_ERROR:
.PHONY: help setup setup-train demo test test-unit test-nightly test-changed goldens mutants lint format bench manifests protos image licences \
	lock clean

help: ## list the targets (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make .venv with everything locked in requirements/dev.txt

setup-train: $(TRAIN_STAMP) ## add torch and Ray, for kerf train --mode ppo and its tests (5 GB)

demo: $(STAMP) ## run Kerf on an embedded sample cluster, in the foreground (KERF_PORT, 8888)
	@exec $(BIN)/kerf demo $(ARGS)

# The tests of one file run sequentially, on their own control planes. They mostly wait for timers: three files at a
# time keep two cores busy.
PYTEST := $(BIN)/pytest --dist loadfile --numprocesses $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2)))

test: $(STAMP) ## run all unit tests, and the guarantees of docs/reference/guarantees.md on a real control plane
	@exec $(PYTEST) -m "verdict or not nightly" $(ARGS)

UNIT := $(addprefix tests/,api core dra explain history kube ledger metrics model parts planning plugins queueing \
	ranking scheduling settings telemetry test_children.py)

test-unit: $(STAMP) ## run the tests that need no network, browser or built programs (a minute)
	@exec $(PYTEST) --hypothesis-profile quick -m "not controlplane and not e2e and not slow and not nightly" $(UNIT) $(ARGS)

OLDER_KUBERNETES := 1.33 1.34 1.36

test-nightly: $(STAMP) ## run the long tests, and all control plane tests on older Kubernetes minors too
	@status=0; $(PYTEST) -m "nightly and not verdict" $(ARGS) || status=1; for minor in $(OLDER_KUBERNETES); do echo "Kubernetes $$minor"; \
	  KERF_TEST_KUBERNETES=$$minor $(PYTEST) -m "controlplane or e2e" $(ARGS) || status=1; \
	  done; exit $$status

test-changed: $(STAMP) ## run the nightly tests that belong to files changed since the merge base with main
	@$(PYTEST) -m "nightly and not verdict" --changed $(ARGS); status=$$?; test $$status = 5 && echo "no nightly test is affected by this change" \
	  || exit $$status

goldens: $(STAMP) ## rewrite the golden files of tests (what each surface says), and the settings on pages of docs/
	@$(BIN)/python -m tests.docs.generated
	@exec $(PYTEST) --goldens $(ARGS)

mutants: $(STAMP) ## run mutation tests: a test must fail for each of thousands of changes (hours)
	@exec $(BIN)/python -m tests.tools.mutants $(ARGS)

lint: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(STAMP) ## run all benchmarks and print their tables
	@exec $(BIN)/kerf bench all $(ARGS)

manifests: $(STAMP) ## write manifests/*.yaml from the chart
	@$(BIN)/python -m tests.install.manifests

protos: $(STAMP) ## write the modules of the kubelet's protobuf definitions (extender/parts/agent/kubelet_api)
	@$(BIN)/python -m tests.parts.agent.protos

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE ?= kerf:$(VERSION)
BASE ?=
FOR ?=
PLATFORMS ?=
SOURCE ?=
# The first that works: docker is often installed without its daemon.
BUILDER ?= $(shell for tool in docker podman buildah; do $$tool info >/dev/null 2>&1 && echo $$tool && break; done)

image: ## build IMAGE with docker, podman or buildah (BUILDER); BASE: base image, FOR=fit: for learning, PLATFORMS: several
	@builder="$(BUILDER)"; test -n "$$builder" \
	  || { echo "make image needs docker, podman or buildah, and none of them works here" >&2; exit 1; }; \
	set -- --label org.opencontainers.image.version=$(VERSION) \
	  $(if $(BASE),--build-arg BASE=$(BASE) --label org.opencontainers.image.base.name=$(BASE)) \
	  $(if $(FOR),--build-arg FOR=$(FOR)) $(if $(SOURCE),--label org.opencontainers.image.source=$(SOURCE)); \
	if revision="$$(git rev-parse HEAD 2>/dev/null)"; then \
	  git diff --quiet HEAD || revision="$$revision-dirty"; \
	  set -- "$$@" --label "org.opencontainers.image.revision=$$revision"; fi; \
	if epoch="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null)}"; then \
	  date() { command date -u "$$@" +%Y-%m-%dT%H:%M:%SZ 2>/dev/null; }; \
	  created="$$(date -d "@$$epoch" || date -r "$$epoch")"; \
	  set -- "$$@" --label "org.opencontainers.image.created=$$created"; fi; \
	case "$(PLATFORMS)/$$builder" in \
	  /*) set -- build --tag "$(IMAGE)" "$$@";; \
	  */docker) set -- buildx build --platform "$(PLATFORMS)" --tag "$(IMAGE)" "$$@";; \
	  *) set -- build --platform "$(PLATFORMS)" --manifest "$(IMAGE)" "$$@";; \
	esac; set -x; exec $$builder "$$@" $(ARGS) .

licences: $(STAMP) ## write docs/reference/licences.md from the locked and installed packages
	@$(BIN)/python -m tests.install.licences

# No header and no index address: the lock files name no registry host. `make lock ARGS=--upgrade` takes newer versions.
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links $(ARGS)

lock: $(UV) ## lock the dependencies of pyproject.toml in requirements/*.txt
	echo uv | $(COMPILE) --no-annotate - --output-file requirements/bootstrap.txt
	$(COMPILE) pyproject.toml --extra agent --group dev --output-file requirements/dev.txt
	$(COMPILE) --group build --constraints requirements/dev.txt --output-file requirements/build.txt
	$(COMPILE) --group plugin --constraints requirements/dev.txt --output-file requirements/plugin.txt
	$(COMPILE) --group release --constraints requirements/dev.txt --output-file requirements/release.txt
	$(COMPILE) pyproject.toml --extra agent --extra plan --extra history --constraints requirements/dev.txt \
	  --output-file requirements/serve.txt
	$(COMPILE) pyproject.toml --extra sim --extra history --constraints requirements/dev.txt --output-file requirements/fit.txt
	$(COMPILE) pyproject.toml --extra train --extra ray --constraints requirements/dev.txt --output-file requirements/train.txt
	@if grep -n '://' requirements/*.txt; then echo "a lock file names a host (above)" >&2; exit 1; fi

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis build dist mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

define SETUP_CHECKS
fail() { echo "$$1: set another with PYTHON=/path/to/python3" >&2; exit 1; }; \
command -v $(PYTHON) >/dev/null || fail "Kerf needs Python 3.11 or newer, and '$(PYTHON)' was not found"; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || fail "Kerf needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1)"; \
$(PYTHON) -c 'import ensurepip, venv' || fail "'$(PYTHON)' can't create a .venv (Debian and Ubuntu: install python3-venv)"
endef

$(UV): requirements/bootstrap.txt
	@$(SETUP_CHECKS)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/bootstrap.txt
	@touch $@

$(STAMP): $(UV) pyproject.toml requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(TRAIN_STAMP): $(STAMP) requirements/train.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/train.txt
	@touch $@
