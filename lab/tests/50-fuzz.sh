#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# lab: --clock real --cpus 4 --nics 2 --timeout 500s
# beside: others
#
# 100,000 damaged messages to the netlink family, with traffic going on.

. /lab/lib.sh
. /lab/net.sh

net_up
kbp load --module "$MODULES/kbp.ko" || lab_fail "kbp load"
net_traffic fuzz --seconds 600 --period-us 5000
kbp-fuzz --messages 100000 --seed "${1:-1}" --cpus "2-3" || lab_fail "the fuzzer"
kill -INT "$NET_PID"
net_none_lost fuzz
kbp unload || lab_fail "unload"
lab_dmesg_clean
lab_pass
