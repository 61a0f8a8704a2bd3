# What a newcomer types. Set-up is part of it: see qemu-tests/prerequisites.sh for what is installed
# where it is missing, and qemu-tests/setup.sh for what is fetched to below target/.

CARGO ?= cargo
ARGS ?=
SECONDS ?= 60
CPU ?= 0
UPLINK ?=
NAME ?= T4
ROUNDS ?= 5

.PHONY: all demo experiment test soak tx-soak check captures fuzz mutants peers rates rules

all:
	$(CARGO) build --release

# Guests with merging off and on, side by side. ARGS=--all adds packets of 64 KiB, ARGS=--help lists more.
demo:
	./qemu-tests/prerequisites.sh
	$(CARGO) build --release --bin vhost-user-gro --example demo
	$(CARGO) run --quiet --release --example demo -- $(ARGS)

# One of the experiments T1 to T5, in up to 12 minutes: a table and a plot in docs/results.
# ARGS="--parts a,b" does a part of it, ARGS=--help lists more.
experiment:
	./qemu-tests/prerequisites.sh
	$(CARGO) build --release --bin vhost-user-gro --example experiments
	$(CARGO) run --quiet --release --example experiments -- $(NAME) --rounds $(ROUNDS) $(ARGS)

# Format, lints, documentation and all tests, those on guests included.
test:
	./qemu-tests/prerequisites.sh
	./qemu-tests/run-all.sh

# The part of it that takes seconds.
check:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --test qemu -- -D warnings
	$(CARGO) check --lib --no-default-features

# Real captures, fetched from packages and recorded here, replayed and compared byte by byte.
captures:
	./qemu-tests/prerequisites.sh
	./tests/captures/run.sh

# All kinds of traffic on one guest for SECONDS, with and without loss. With UPLINK=tap, af_packet, stream
# or all, one after the other, the uplink goes and comes back meanwhile. `make test` does 20 s of each.
soak-on- = soak_mixed_traffic
soak-on-all = soak_outages
soak-on-tap = soak_outages --exact
soak:
	./qemu-tests/prerequisites.sh
	QEMU_TESTS_REQUIRED=1 QEMU_TESTS_SOAK_SECONDS=$(SECONDS) $(CARGO) test --release --test qemu -- \
		$(or $(soak-on-$(UPLINK)),soak_outages_on_$(subst -,_,$(UPLINK)))

# The order of every flow over uplinks that refuse at random, for SECONDS; `make test` does 2 s of it.
tx-soak:
	TX_SOAK_SECONDS=$(SECONDS) $(CARGO) test --release --test worker unreliable -- --nocapture

# Each fuzz target for SECONDS, one after the other; needs a C++ compiler, no nightly toolchain.
fuzz:
	./fuzz/run.sh $(SECONDS)

# Each rule of merging and sending is taken out in turn, and a test must fail; minutes. ARGS=TCP-12 does a part.
rules:
	./tests/rules.sh $(ARGS)

# The same with every line of engine and segmentation that a machine can break; half an hour or more.
# ARGS="--shard 0/8" does a part.
mutants:
	./tests/mutants.sh $(ARGS)

# The engine and DPDK's side by side on processor CPU, half a minute; needs a C compiler and pkg-config.
peers:
	CPU=$(CPU) ./benches/peers/run.sh

# Frames a second with testpmd as the guest, beside testpmd's own device, to docs/results/rates.md; five
# minutes on two processors. ARGS="--rounds 9" does more.
rates:
	./qemu-tests/prerequisites.sh
	$(CARGO) build --release --bin vhost-user-gro --example rates
	$(CARGO) run --quiet --release --example rates -- $(ARGS)
