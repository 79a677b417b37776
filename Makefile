# `make demo` and `make test` install what they need into .venv first; both are quick when it is there.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Images of Python set it. Without compiled files each of the hundreds of processes that the tests start compiles Waltz anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-long docs attacks check fix bench bench-spark pipelines sink-kills interop fuzz determinism failover torture model mutants fuzz-decoders crash-sweep driver-crashes driver-nets corruption histories screenshots

install: .venv/installed

.venv/installed: pyproject.toml
	@.ci/system-packages
	@begin=$$SECONDS; set -e; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V)" >&2; exit 3; }; \
	$(PYTHON) -m venv --clear .venv; \
	$(BIN)/pip install --quiet --upgrade pip; \
	$(BIN)/pip install -qq --editable '.[dev]'; \
	touch $@; \
	echo "Installed into .venv in $$((SECONDS - begin)) s"

demo: install
	$(BIN)/waltz demo run

# mypy takes as long as all the others: beside them.
check: install
	@$(MAKE) -j2 --output-sync=target --no-print-directory check-types check-style

.PHONY: check-types check-style
check-types:
	$(BIN)/mypy
check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.unused

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Development mode: value classes are frozen, and Trio complains about what it otherwise forgives. Its checked memory
# allocator is for extensions written in C, and would take a fifth of the time. Seeds are worth more in number.
DEVELOPMENT := env PYTHONDEVMODE=1 PYTHONMALLOC=default $(BIN)/python -m pytest -q
# What runs whole clusters for long is not measured for coverage, which would make it three times slower.
LONG := $(addprefix tests/model/test_,$(addsuffix .py,simulation phases scenarios streams crash_sweep corruption recovery_model failover hostile application_layer limits fairness legacy_clients security gateway proxy idle))
CORE := tests/unit tests/witness tests/model $(addprefix --ignore=,$(LONG))
# A test that hangs ends by its own limit (pyproject.toml); a run that hangs between tests ends by this one, and says where it was.
PYTEST := timeout --foreground --signal=INT --kill-after=60 45m $(DEVELOPMENT) -n 2 --durations=5
FUZZ := nice -n 5 $(BIN)/python -m tests.model.fuzz --jobs 2

# Lanes beside each other, each a stage at a time, its output when it ends: what computes, and what waits more than it computes
# (drivers and processes, three at a time; Spark; by files). What computes takes the time that the others leave, Spark before it.
LANES := -j3 --output-sync=target --no-print-directory
BEGIN = mkdir -p $(STAGES) && date +%s > $(STAGES)/began
TOOK = echo "$(1) took $$(($$(date +%s) - $$(cat $(STAGES)/began))) s, installation apart"
COMPUTE := nice -n 5 $(PYTEST)
# Fewer examples of each property than `make test-long` tries.
QUICK := $(COMPUTE) --hypothesis-profile=quick
# Real processes on real clocks, beside others on the same cores: what fails is run once more, alone. It must pass then, and is named.
# Its names stand in $(BESIDE), with a count at the end of the run. Each stage that waits has its own cache of what failed.
BESIDE := build/beside-others.txt
STAGES := build/stages
COUNT_BESIDE = [ ! -s $(BESIDE) ] || echo "$$(wc -l < $(BESIDE)) tests failed beside others and passed alone, see $(BESIDE)"
STEADY = $(PYTEST) $(3) -o cache_dir=$(STAGES)/$(1) $(2) || { [ $$? = 1 ] && mkdir -p $(STAGES)/$(1) && touch $(STAGES)/$(1)/again; }
ALONE = [ ! -e $(STAGES)/$(1)/again ] || { echo "Once more, alone, what failed beside others:" && \
  $(DEVELOPMENT) -rA -p tests.beside --beside $(BESIDE) -o cache_dir=$(STAGES)/$(1) --last-failed --last-failed-no-failures none $(2); }

DRIVERS := -m 'not slow' tests/trio tests/sync tests/aio tests/testing tests/dcb tests/views tests/docs tests/examples tests/processes tests/console tests/attacks tests/interop tests/histories
SPARK := -m 'not slow' tests/spark
# The same seeds every time: what fails here fails again. Where `make test-long` follows, as in .ci/run, LATER=core leaves the core
# to it, which runs the same tests with their coverage measured.
test: install
	@.ci/system-packages tests
	@rm -rf $(BESIDE) $(STAGES); $(BEGIN)
	@$(MAKE) $(LANES) stage-pure stage-drivers stage-spark
	@$(call ALONE,drivers,$(DRIVERS))
	@$(call ALONE,spark,$(SPARK))
	@$(COUNT_BESIDE); $(call TOOK,Tests$(if $(LATER), without the $(LATER)))

.PHONY: stage-core stage-clusters stage-seeds stage-pure stage-drivers stage-spark
stage-core: check-types check-style
	@$(if $(filter core,$(LATER)),echo "The core runs in make test-long",$(QUICK) -m 'not slow' $(CORE))
stage-clusters: stage-core
	@$(QUICK) -m 'not slow' $(LONG) tests/vectors tests/mutants tests/decoders tests/driver_crashes tests/driver_nets
stage-seeds: stage-clusters
	@$(FUZZ) --seeds 1..60
	@export WALTZ_SPEEDUPS=0; $(FUZZ) --seeds 61..72
stage-pure: stage-seeds
	@export WALTZ_SPEEDUPS=0; $(QUICK) -m 'not slow' tests/vectors tests/unit/server tests/unit/client tests/unit/wire
stage-drivers:
	@$(call STEADY,drivers,$(DRIVERS),-n 3 --dist loadfile)
stage-spark:
	@nice -n 2 $(call STEADY,spark,$(SPARK),--dist loadfile)

SLOW_DRIVERS := -m slow tests/unit tests/model tests/vectors tests/driver_crashes tests/trio tests/dcb tests/views tests/docs tests/examples tests/processes tests/console tests/attacks tests/histories
SLOW_SPARK := -m slow tests/spark
# Coverage of the core, the slow half of the tests of processes and Spark, and 1,000 seeds that nobody has seen before this commit:
# they are drawn from its content, so that whoever runs it again sees what CI saw.
test-long: install
	@.ci/system-packages tests
	@rm -rf $(BESIDE) $(STAGES); $(BEGIN)
	@$(MAKE) $(LANES) stage-fresh-seeds stage-slow-spark
	@$(call ALONE,slow-drivers,$(SLOW_DRIVERS))
	@$(call ALONE,slow-spark,$(SLOW_SPARK))
	@$(COUNT_BESIDE); $(call TOOK,Long tests)

.PHONY: stage-coverage stage-fresh-seeds stage-slow-drivers stage-slow-spark
stage-coverage:
	@nice -n 5 $(COMPUTE) -m 'not slow' $(CORE) --cov --cov-report= --cov-fail-under=95
stage-fresh-seeds: stage-coverage
	@nice -n 5 $(FUZZ) --fresh 1000 --of-tree
stage-slow-drivers:
	@$(call STEADY,slow-drivers,$(SLOW_DRIVERS),-n 3)
stage-slow-spark: stage-slow-drivers
	@$(call STEADY,slow-spark,$(SLOW_SPARK),--dist loadfile)

# The site of docs/, as pages in build/site; a warning is an error, and nothing is fetched.
docs: install
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/site
	@echo "build/site/index.html"

# The pictures of the console in the docs, made by its test.
screenshots: install
	@WALTZ_SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/console/test_console.py

# Needs an installation of the original: WALTZ_JAVA_CLASSPATH, WALTZ_JAVA_OPTS; see docs/compatibility.md.
interop: install
	@$(BIN)/python -m tests.interop $(if $(JSON),--json $(JSON))

# Hostile peers at every port beside an honest load, with their bars; SECONDS_EACH (4) of each measurement.
attacks: install
	@$(BIN)/python -m tests.attacks --seconds $(or $(SECONDS_EACH),4) $(if $(JSON),--json $(JSON))

# Every benchmark, ROUNDS (1) times: ten minutes on two cores of their own; figures and a picture go to benchmarks/results.
bench: install
	@$(BIN)/python -m benchmarks --rounds $(or $(ROUNDS),1) $(if $(ONLY),--only $(ONLY))

# The data pipeline on 4 million records of 79 bytes and 400,000 of 1 KB; BANK and LARGE change that.
bench-spark: install
	$(BIN)/python -m benchmarks.spark --bar $(if $(BANK),--bank $(BANK)) $(if $(LARGE),--large $(LARGE)) $(if $(JSON),--json $(JSON))

# Spark Connect and a declarative pipeline, each with a Java process of its own; a minute or more.
pipelines: install
	$(BIN)/pip install -qq --editable '.[connect]'
	@$(BIN)/python -m tests.spark.pipelines $(if $(JSON),--json $(JSON))

# The sink under SCHEDULES (5000) random schedules of faults, and KILLS (10) kills of its driver in the middle.
sink-kills: install
	@WALTZ_SINK_SCHEDULES=$(or $(SCHEDULES),5000) WALTZ_SINK_KILLS=$(or $(KILLS),10) $(BIN)/python -m pytest -q \
	  tests/spark/test_epochs.py tests/spark/test_sink.py

# Whole clusters under faults: SEEDS=A..B, or MINUTES=M (5) of fresh seeds; JOBS processes (2).
fuzz: install
	@$(BIN)/python -m tests.model.fuzz --bar --jobs $(or $(JOBS),2) \
	  $(if $(SEEDS),--seeds $(SEEDS),--minutes $(or $(MINUTES),5)) $(if $(JSON),--json $(JSON))

# Each seed in two processes with different orders of sets; 1,500 take some ten minutes, the bar is COUNT=10000.
determinism: install
	@$(BIN)/python -m tests.model.determinism --count $(or $(COUNT),1500) $(if $(JSON),--json $(JSON))

# How long nothing is committed when the owner of a partition fails; about 20 minutes.
failover: install
	@$(BIN)/python -m tests.processes.failover --trials $(or $(TRIALS),200) $(if $(JSON),--json $(JSON)) $(if $(PLOT),--plot $(PLOT))

# How long nothing is committed while the nodes of a loaded cluster are restarted by `waltz restart-plan`, ROUNDS (3) times.
.PHONY: rolling
rolling: install
	@$(BIN)/python -m tests.processes.rolling --rounds $(or $(ROUNDS),3) $(if $(JSON),--json $(JSON))

# A cluster under a light load for HOURS (2), with faults, archive, moves and certificates that expire: nothing may grow.
.PHONY: soak
soak: install
	@$(BIN)/python -m tests.soak --hours $(or $(HOURS),2) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON)) $(if $(PLOT),--plot $(PLOT))

# A million transactions on 3 servers, 3 storage nodes and 2 clients under random faults; 10 to 20 minutes.
torture: install
	@$(BIN)/python -m tests.processes.torture --transactions $(or $(TRANSACTIONS),1000000) --window 200 $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

# Every schedule of small recoveries; JOBS processes (2).
model: install
	@$(BIN)/python -m tests.model.recovery_model --all --jobs $(or $(JOBS),2) $(if $(JSON),--json $(JSON))

# Bugs planted one at a time: who finds them, how soon; some 15 minutes of one core. JOBS processes (1).
mutants: install
	@$(BIN)/python -m tests.mutants --jobs $(or $(JOBS),1) $(if $(JSON),--json $(JSON))

# Histories of real clusters under faults, judged by our checker and by Porcupine (needs Go); RUNS (20), SECONDS_EACH (25).
histories: install
	@command -v go >/dev/null || { echo "no go on PATH; install Go, or run $(BIN)/python -m tests.histories for our own checker" >&2; exit 3; }
	@kept=$$(mktemp -d) && $(BIN)/python -m tests.histories --runs $(or $(RUNS),20) --seconds $(or $(SECONDS_EACH),25) --keep $$kept \
	  $(if $(JSON),--json $(JSON)) && cd tests/histories/porcupine && go run . $$kept/*.porcupine.jsonl

# Every decoder under bytes that nobody sends, for SECONDS_MAX (300); INPUTS=1e8 blind ones are the bar, GUIDED=3600 seconds.
fuzz-decoders: install
	@$(BIN)/python -m tests.decoders --seconds $(or $(SECONDS_MAX),300) $(if $(INPUTS),--inputs $(INPUTS)) \
	  $(if $(GUIDED),--guided $(GUIDED)) $(if $(JSON),--json $(JSON))

# Every state of the disk in which a power failure may leave a storage node, for lives of LENGTH (6) requests; one core.
crash-sweep: install
	@$(BIN)/python -m tests.model.crash_sweep --length $(or $(LENGTH),6) $(if $(JSON),--json $(JSON))

# Real drivers on a real directory, replayed with a power failure behind every call; each sync left out, moved, misdirected.
driver-crashes: install
	@$(BIN)/python -m tests.driver_crashes --words $(or $(WORDS),30) $(if $(JSON),--json $(JSON))

# Real connections on sockets in memory that fail in every way: SEEDS=A..B (1..5000), and an end at each step of a short life.
driver-nets: install
	@$(BIN)/python -m tests.driver_nets --seeds $(or $(SEEDS),1..5000) $(if $(JSON),--json $(JSON))

# Three replicas of four records, each copy good or bad: 4,096 cases; two to three minutes of one core.
corruption: install
	@$(BIN)/python -m tests.model.corruption $(if $(JSON),--json $(JSON))
