#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# A guest that reflects: for a tester on the host, at the other end of `kbp lab run --wire PATH --clock real`.
#
#     kbp lab run lab/reflector.sh --clock real --wire /tmp/w --file $(which kbp) -- 198.18.0.2/24 60 &
#     kbp measure openloop 198.18.0.2:7700 --backend wire --wire /tmp/w --address 198.18.0.9 --rate 10M
#
# Arguments: address of the guest, seconds.

. /lab/lib.sh

[ -n "$LAB_WIRE" ] || lab_fail "this machine has no wire: run it with --wire PATH --clock real"
ip addr add "${1:-198.18.0.2/24}" dev "$LAB_WIRE"
ip link set "$LAB_WIRE" up
kbp measure pingpong server --bind 0.0.0.0:7700 &
lab_defer kill $!
sleep "${2:-60}"
ip -s link show dev "$LAB_WIRE"
lab_pass
