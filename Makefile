# Every target works as the only command: the environment is made when it is missing, and left alone when it is there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS = $(shell $(PYTHON) -c "import os; print(min(os.cpu_count(), 3) + 2)")

.PHONY: help demo up down measure test test-frameworks test-servers test-migrating test-stack test-kubernetes test-pythons test-opentelemetry package check format dashboards docs pictures bench storm fuzz coverage clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## Show this list.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/demo $(if $(OPENAI_BASE_URL),$(VENV)/openai) $(if $(ANTHROPIC_BASE_URL),$(VENV)/anthropic) $(foreach extra,postgres serve nats view,$(if $(findstring $(extra),$(ARGS)),$(VENV)/$(extra:serve=server))) ## See a real agent on real MCP servers, traced; in a browser: make demo ARGS="--view"; or a run that survives its process: make demo ARGS="durable"; or scores: make demo ARGS="scores".
	@$(BIN)/pellucid demo $(ARGS)

up: .env ## Start collector, Jaeger, Prometheus, Alertmanager and Grafana; with the demo: make up ARGS="--profile demo".
	docker compose $(ARGS) up --detach --build --wait
	@echo "Send to http://localhost:4318. Grafana http://localhost:3000  Jaeger http://localhost:16686"
	@echo "Prometheus http://localhost:9090  Alertmanager http://localhost:9093"

down: .env ## Stop them; what they stored stays: make down ARGS="--volumes" removes it.
	docker compose --profile demo down $(ARGS)

# Read by docker compose. The password is that of Grafana's user admin.
.env:
	@umask 077 && $(PYTHON) -c 'import secrets; print(f"GRAFANA_PASSWORD={secrets.token_urlsafe(18)}")' > $@

# Tests start hundreds of processes, which need not compile the package each time.
test: export PYTHONDONTWRITEBYTECODE :=

# A whole run is shared by one process more than there are cores, because many tests wait for a server; a selection needs
# no more than one.
test: $(VENV)/dev ## Run the test suite; arguments: make test ARGS="-k stream".
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@failed=0; $(BIN)/python -m pytest -m "not stack and not alone" --numprocesses=$(WORKERS) --dist=worksteal || failed=$$?; \
		$(BIN)/python -m pytest tests/dashboards -m alone || failed=$$?; exit $$failed
endif

check: $(VENV)/dev ## Lint, check types, layers and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: $(VENV)/dev ## Write dashboards and rules anew, from the code in dashboards/.
	@$(BIN)/python -m pellucid_dashboards.generate

docs: $(VENV)/dev ## Write the API reference from the docstrings, build the site of the documentation into site/, and check its links.
	@PYTHONPATH=tests $(BIN)/python -m documentation.reference
	@PYTHONPATH=tests $(BIN)/python -m documentation.site

pictures: $(VENV)/dev ## Make the pictures of the documentation anew, from recorded runs (needs Chromium).
	@PYTHONPATH=tests $(BIN)/python -m documentation.pictures

# What `make bench WHAT=...` runs: a module of tests/bench.
BENCH_context = context#         requests that fit into the window: cached prefix, time of an iteration, 10,000 conversations
BENCH_durable = durable#         the store of durable runs, beside raw transactions (starts PostgreSQL)
BENCH_first   = first_moments#   imports, agents as they are made, first runs, the chunks of streams
BENCH_fleet   = fleet#           a fleet's telemetry through Collector, Jaeger and Prometheus (after `make test-stack`; Linux)
BENCH_replay  = replay#          an iteration of a replay, and recorded timing beside the recorded duration
BENCH_rules   = rules#           the rules on 1,000 to 100,000 hub series, in a real Prometheus (half an hour)
BENCH_scaling = scaling#         a simulation of workers and a database under more and more runs; ARGS="--measure" measures
BENCH_search  = search_quality#  how well tool_search finds tools of real MCP servers (downloads them; needs Node.js)
BENCH_served  = served#          what the instrumentation of an MCP server adds to a request
BENCH_server  = server#          server and workers of durable runs, beside a raw endpoint (starts PostgreSQL; Linux)
BENCH_store   = store#           the local store: CPU of ingestion, bytes, queries; ARGS="--spans 1000000"
BENCH_view    = view#            the pages of pellucid view over 10,000 runs, and a run of 5,001 spans (needs Chromium)
BENCHES       = context durable first fleet replay rules scaling search served server store view

bench: $(VENV)/dev ## Measure the cost of telemetry and of tool search; others: make bench WHAT=context|durable|first|fleet|replay|rules|scaling|search|served|server|store|view.
ifdef WHAT
	@PYTHONPATH=tests $(BIN)/python -m bench.$(or $(BENCH_$(WHAT)),$(error unknown WHAT=$(WHAT); use one of: $(BENCHES))) $(ARGS)
else
	@PYTHONPATH=tests $(BIN)/python -m bench.iteration $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m bench.tool_search
endif

measure: $(VENV)/dev ## Count what a first run loads, what a tool call executes, and what users see, beside the budgets.
	@PYTHONPATH=tests $(BIN)/python -m bench.measure

storm: $(VENV)/dev ## Kill and drain workers and servers, with and without NATS, on 200 durable runs 100 times, on each database; deploy a new version; arguments: make storm ARGS="-k sqlite".
	@PELLUCID_STORM_RUNS=200 PELLUCID_STORM_KILLS=100 PELLUCID_STORM_WORKERS=4 \
		PELLUCID_DEPLOY_RUNS=200 PELLUCID_DEPLOY_SECONDS=2 \
		$(BIN)/python -m pytest tests/durable/test_durable_storm.py::test_storm \
		tests/durable/test_durable_storm.py::test_storm_with_nats \
		tests/durable/test_network_cuts.py tests/durable/test_rolling_deploys.py \
		tests/server/test_server_crashes.py::test_storm_over_http --durations=0 $(ARGS)

fuzz: $(VENV)/dev ## Send requests made by libFuzzer to the server; arguments: make fuzz ARGS="-max_total_time=600".
	@$(BIN)/python tests/fuzz/server_requests.py -max_len=600 $(or $(ARGS),-max_total_time=60)

test-migrating: $(VENV)/dev ## Run the programs of docs/migrating.md, with other frameworks (downloads them); what they record: ARGS="--telemetry".
	@PYTHONPATH=tests $(BIN)/python -m bench.migrating $(ARGS)

test-frameworks: $(VENV)/dev ## Run agents of other frameworks, instrumented (downloads them); one of them: ARGS="strands-agents".
	@PYTHONPATH=tests $(BIN)/python -m bench.frameworks $(ARGS)

test-servers: $(VENV)/dev ## Instrument MCP servers of other versions and packages (downloads them).
	@PYTHONPATH=tests $(BIN)/python -m bench.server_versions

test-pythons: $(VENV)/dev ## Run the fast part of the test suite on the other Pythons of this machine; more: ARGS="tests".
	@PYTHONPATH=tests $(BIN)/python -m distribution.pythons $(ARGS)

test-opentelemetry: $(VENV)/dev ## Run the tests of what is emitted and exported with the lowest and the newest supported OpenTelemetry.
	@PYTHONPATH=tests $(BIN)/python -m distribution.opentelemetry_versions $(ARGS)

package: $(VENV)/package ## Build sdist and wheel into dist/, install them, list their dependencies, and test the sdist; without that: ARGS="--quick".
	@PYTHONPATH=tests $(BIN)/python -m distribution.release $(ARGS)

test-stack: $(VENV)/dev ## Run what docker-compose.yml does, without containers, and look: servers built from Go modules (once, 20 minutes), alerts in real time.
	@PYTHONPATH=tests $(BIN)/python -m stack.servers
	@$(BIN)/python -m pytest tests/stack -m stack --timeout=2400 --durations=10 $(ARGS)

test-kubernetes: $(VENV)/dev ## Check manifests and chart against schemas of Kubernetes and of operators, with helm: got from Go modules (once, 10 minutes).
	@PYTHONPATH=tests $(BIN)/python -m deploy.schemas
	@$(BIN)/python -m pytest tests/deploy $(ARGS)

coverage: $(VENV)/dev ## Run the test suite and report what it does not reach.
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage report

clean: ## Remove the environment and all caches.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage build dist site .cache

# The stamps say which set of packages the environment holds; the versions are those of constraints.txt.
$(VENV)/base: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "Making $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@

$(VENV)/demo: $(VENV)/base
	@echo "Installing Pellucid with the hubs of the demo ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[demo]"
	@touch $@

$(VENV)/openai $(VENV)/anthropic $(VENV)/postgres $(VENV)/server $(VENV)/nats $(VENV)/view: $(VENV)/demo
	@echo "Installing the extra $(@F) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$(@F)]"
	@touch $@

$(VENV)/package: $(VENV)/dev
	@echo "Installing what builds and checks packages ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group package
	@touch $@

$(VENV)/dev: $(VENV)/base
	@echo "Installing Pellucid with everything that tests and checks need ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[all]" --group dev
	@touch $(VENV)/demo && touch $@ $(VENV)/openai $(VENV)/anthropic $(VENV)/postgres $(VENV)/server $(VENV)/nats $(VENV)/view
