# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The front door: thin targets that call cargo, kbuild, the lab and scripts/.

TARGET	:= $(or $(CARGO_TARGET_DIR),target)
KBP	:= $(TARGET)/release/kbp
KERNEL	?= 6.1
# What `make test-kernels` and `make check-abi` go through: all kernels of lab/kernels.toml if this is empty.
KERNELS	?=
# Anything here makes `make test-kernels` run the wider set of tests, too.
WIDE	?=
OUT	?= out

SHELL_FILES = $(shell git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)

# "busybox's shell is checked as dash", "this file exists in the guest only", and what shellcheck guesses about
# functions that another file or lab_wait_for calls.
SHELLCHECK_NOTICES = SC2187,SC1091,SC2119,SC2120,SC2317

.PHONY: help setup setup-test build demo bench vm results man deb test test-host test-kernels test-packages check-abi lint \
	lint-kmod uapi clean energy vm-ovs capacity budget torture torture-short torture-report long soak soak-report lab-debug-kernel lab-qemu

help:
	@echo 'make demo           KBP in a stock kernel beside the alternatives: a table and $(OUT)/demo/report.html'
	@echo 'make bench          the whole study in the lab, about an hour; writes docs/results, goes on where it was'
	@echo 'make results        the page and the tables of docs/results from the results that are there'
	@echo 'make energy         what sleeping, windows and frequencies cost and save, hours; writes docs/results/energy'
	@echo 'make capacity       what the receive path of one CPU carries in each mode; NICS=2:igb for other cards'
	@echo 'make budget         what the small budgets of class normal cost a bulk packet, in instructions'
	@echo 'make vm             a virtual machine inside the lab, paper 000: no poller, guest, host, both; writes out/vm/KERNEL'
	@echo 'make vm-ovs         the same with the rival of the paper, OVS-DPDK, in the host; writes out/vm/KERNEL-ovs'
	@echo 'make test           unit tests, and the lab tests on the kernel $(KERNEL)'
	@echo 'make test-host      unit tests only'
	@echo 'make test-kernels   build, load, serve, unload on every kernel: one table; KERNELS="6.1 7.3" for some, WIDE=1 for more tests'
	@echo 'make test-packages  the Debian packages in a Debian that reboots into a new kernel, as root; takes long'
	@echo 'make check-abi      kernel images: is what the live patch replaces still all there is? KERNELS=... for some'
	@echo 'make torture-short  random actions under traffic on: $(TORTURE_KERNELS), and on the debug kernel if it is built'
	@echo 'make torture        the same for HOURS=2 on KERNEL=6.1-debug; writes docs/results/torture.md'
	@echo 'make long           random traffic for MINUTES=60 of a guest on KERNEL=6.1, in modes sleep and adaptive: nothing lost or late'
	@echo 'make soak           traffic in all modes for HOURS=12 on: $(SOAK_KERNELS); goes on where it was; writes docs/results/soak.md'
	@echo 'make lab-qemu       build the QEMU of the parallel clock, once, some ten minutes; studies on that clock do it'
	@echo 'make lab-debug-kernel  build the kernel with lockdep, KASAN and others, once, 20 minutes or more'
	@echo 'make lint           format, clippy, features of libraries, generated files, style of C, shell and text, sizes'
	@echo 'make lint-kmod      build the module with W=1 and sparse, warnings as errors'
	@echo 'make deb            Debian packages: kbp, and kbp-dkms with the sources of the module: $(OUT)/deb/*.deb'
	@echo 'make man            manual pages of kbp and its commands: $(OUT)/man/*.1'
	@echo 'make uapi           write what is generated from kmod/uapi/kbp.yaml'
	@echo 'make setup          install the Debian packages that all of this needs (as root)'
	@echo 'make clean          remove what was built here; `kbp lab clean` empties the cache of the lab'

setup:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh test

# What cargo builds besides the product.
CARGO_TARGETS =

build: setup
	cargo build --release --workspace $(CARGO_TARGETS)

DEMO	= $(OUT)/demo

demo: build
	$(KBP) lab run lab/demo.sh --kernel $(KERNEL) --cpus 4 --clock virtual --nics 2 \
		--module kmod --module lab/modules/storm \
		--package sockperf --file $(KBP):/usr/bin/kbp \
		--timeout 900s --out $(DEMO)
	$(KBP) measure complete $(DEMO)/result.json --git "$$(git describe --always --dirty)"
	$(KBP) report $(DEMO)/result.json -o $(DEMO)/report.html --check

man: build
	$(KBP) man $(OUT)/man

DEB	= $(OUT)/deb

deb: build
	@scripts/setup.sh deb
	scripts/make-deb.sh $(KBP) $(DEB)

# What is measured stays in $(BENCH) and is not measured again; docs/results is written anew from it.
STUDY	= bench
BENCH	= $(OUT)/$(STUDY)
RESULTS	= docs/results

bench: build
	@! grep -q '^clock = "parallel"' lab/studies/$(STUDY).toml || $(MAKE) lab-qemu
	$(KBP) compare study lab/studies/$(STUDY).toml --out $(BENCH) --git "$$(git describe --always --dirty)"
	scripts/publish-results.sh $(BENCH) $(RESULTS)
	$(MAKE) results

# The page and the tables from the results that are kept, without measuring again.
results: build
	$(KBP) report $(RESULTS)/*.json -o $(RESULTS)/index.html --tables $(RESULTS)/tables.md

# The virtual machine of paper 000. VM_ARGS: rounds, seconds of a row, us between pings, mode, payloads, configurations,
# loads; those that are left out are all, but for the load `throughput`, the highest rate without loss.
VM	= $(OUT)/vm/$(KERNEL)
VM_ARGS	= 3 0.3 500 sleep 24
VM_RUN	= $(KBP) lab run lab/vm.sh --clock parallel --kernel $(KERNEL) --nested $(KERNEL) --cpus 5 --nics 2 --module kmod \
		--module lab/modules/storm --module lab/modules/svmexit --package util-linux --file $(KBP):/usr/bin/kbp \
		--timeout 240m
OVS_PACKAGES = openvswitch-common openvswitch-switch openvswitch-switch-dpdk \
		librte-bus-pci23 librte-bus-vdev23 librte-mempool-ring23 librte-net-e1000-23

vm: build lab-qemu
	$(VM_RUN) --mem 1024 --out $(VM) -- bridge $(VM_ARGS)
	scripts/vm-table.py $(VM)/rows.jsonl

# The same with OVS-DPDK between card and machine instead of a bridge.
vm-ovs: build lab-qemu
	$(VM_RUN) --mem 1792 $(OVS_PACKAGES:%=--package %) --out $(VM)-ovs -- ovs-dpdk $(VM_ARGS)
	scripts/vm-table.py $(VM)-ovs/rows.jsonl

# What the receive path of one CPU carries in each mode, and what a small budget costs a bulk packet: instructions.
NICS ?= 2
CAPACITY_RUN = $(KBP) lab run lab/capacity.sh --kernel $(KERNEL) --clock virtual --cpus 4 --nics $(NICS) --package ethtool \
		--append nohz=off --module kmod --file $(KBP):/usr/bin/kbp --timeout 30m

capacity: build
	$(CAPACITY_RUN) --out $(OUT)/capacity/$(KERNEL) -- modes

budget: build
	$(CAPACITY_RUN) --out $(OUT)/budget/$(KERNEL) -- budgets

energy:
	$(MAKE) bench STUDY=energy RESULTS=$(RESULTS)/energy

# The unit tests are compiled while the product is, not after its last crate.
test: CARGO_TARGETS = --all-targets
test: build setup-test
	scripts/run-tests.py host lab --kernel $(KERNEL)

test-host: setup setup-test
	scripts/run-tests.py host

test-kernels: build
	scripts/run-tests.py kernels $(if $(WIDE),--wide) $(KERNELS:%=--kernel %)

# They find the packages in out/deb.
test-packages: deb
	scripts/run-tests.py packages

check-abi: build
	scripts/check-abi.py $(KERNELS:%=--kernel %)

# Torture: one machine after the other; a seed is chosen, and printed, where SEED names none.
TORTURE		= $(OUT)/torture
TORTURE_KERNELS	?= 6.1 6.12 7.3
TORTURE_PHASES	?= 3
TORTURE_SECONDS	?= 20
TORTURE_RESULTS	= $(sort $(wildcard $(TORTURE)/*/torture.json))
HOURS		?= 2
SEED		?=
ACTIONS		?=

torture-short: build
	KBP=$(KBP) scripts/torture.sh $(TORTURE) "$(TORTURE_KERNELS) 6.1-debug?" \
		--phases $(TORTURE_PHASES) --seconds $(TORTURE_SECONDS) $(SEED:%=--seed %) $(ACTIONS:%=--only %)

torture: KERNEL = 6.1-debug
torture: build
	KBP=$(KBP) scripts/torture.sh $(TORTURE) "$(KERNEL)" \
		--for $(HOURS)h --seconds $(TORTURE_SECONDS) $(SEED:%=--seed %) $(ACTIONS:%=--only %)
	$(MAKE) torture-report

# The page from the results that are there, without torturing again.
torture-report: build
	$(TARGET)/release/kbp-torture report $(TORTURE_RESULTS) -o $(RESULTS)/torture.md

# A seed is chosen, and printed, where SEED names none. An hour of the guest takes the host some hours.
MINUTES		?= 60

long: build
	$(KBP) lab run lab/long.sh --kernel $(KERNEL) --clock virtual --cpus 4 --nics 2 \
		--module kmod --file $(KBP):/usr/bin/kbp --timeout 1440m --out $(OUT)/long/$(KERNEL) -- $(MINUTES) $(SEED)

# Parts of ten minutes are kept in $(SOAK), so the same command goes on after a break.
SOAK		= $(OUT)/soak
SOAK_KERNELS	?= 6.1 6.12 7.3

soak: HOURS = 12
soak: build
	scripts/soak.py run $(SOAK) --kbp $(KBP) --hours $(HOURS) --kernels "$(SOAK_KERNELS)" $(SEED:%=--seed %) \
		--revision "$$(git describe --always --dirty)"
	$(MAKE) soak-report

# The page from the parts that are there.
soak-report:
	scripts/soak.py report $(SOAK) -o $(RESULTS)/soak.md

lab-qemu: setup
	@scripts/setup.sh qemu
	scripts/build-qemu.sh

lab-debug-kernel: build
	$(KBP) lab fetch 6.1-debug

lint:
	@scripts/setup.sh lint
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	scripts/uapi-gen.py --check
	scripts/lint-cargo.sh
	scripts/lint-c.py
	scripts/lint-text.py
	scripts/lint-size.py
	shellcheck --exclude=$(SHELLCHECK_NOTICES) $(SHELL_FILES)

# -Wsparse-error lets sparse fail the build; -Werror does the same for gcc.
lint-kmod: build
	@scripts/setup.sh lint
	$(KBP) lab build --kernel $(KERNEL) --module kmod -- \
		W=1 C=2 CHECK=sparse CF=-Wsparse-error KCFLAGS=-Werror

uapi:
	scripts/uapi-gen.py

clean:
	cargo clean
	$(MAKE) -C kmod clean
	$(MAKE) -C kmod/tests clean
	rm -rf $(OUT)
