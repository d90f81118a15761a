# SPDX-License-Identifier: GPL-2.0-only
#
# Asks the kernel's headers which features they have and turns each answer
# into -DKBP_HAVE_X. One line a feature: name, header, pattern. The numbers
# say in which release the feature appeared, for the reader; a distribution
# may have taken it back, so nothing here compares versions.

kbp-has = $(shell grep -qsE '$(2)' $(srctree)/include/$(1) && echo y)
kbp-probe = $(if $(call kbp-has,$(2),$(3)),-DKBP_HAVE_$(1))

# 6.15: GRO state of a NAPI in a struct of its own
kbp-compat-y += $(call kbp-probe,GRO_NODE,linux/netdevice.h,struct gro_node[[:space:]]+gro;)
# 6.4: napi_struct::list_owner, the CPU on whose list a NAPI is
kbp-compat-y += $(call kbp-probe,LIST_OWNER,linux/netdevice.h,list_owner;)
# 6.4: softnet_data::in_net_rx_action, which makes raising NET_RX unnecessary
kbp-compat-y += $(call kbp-probe,IN_NET_RX_ACTION,linux/netdevice.h,in_net_rx_action;)
# 6.11: redirect state of BPF programs on the stack of who polls
kbp-compat-y += $(call kbp-probe,BPF_NET_CTX,linux/filter.h,bpf_net_ctx_set)
# 6.12: the handler of a softirq is called without an argument
kbp-compat-y += $(call kbp-probe,SOFTIRQ_NO_ARGUMENT,linux/interrupt.h,\(\*action\)\(void\))
# 6.6: struct netdev_rx_queue in a header of its own
kbp-compat-y += $(call kbp-probe,RX_QUEUE_H,net/netdev_rx_queue.h,struct netdev_rx_queue)
# 6.8: a receive queue knows its NAPI
kbp-compat-y += $(call kbp-probe,RX_QUEUE_NAPI,net/netdev_rx_queue.h,struct napi_struct[[:space:]]+\*napi;)
# 6.18: packets to be freed by another CPU wait in a list for each NUMA node
kbp-compat-y += $(call kbp-probe,SKB_DEFER_NODE,net/hotdata.h,struct skb_defer_node)
# until 6.18: an XDP receive queue knows the id of its NAPI
kbp-compat-y += $(call kbp-probe,XDP_RXQ_NAPI_ID,net/xdp.h,unsigned int napi_id;)
# 6.4: the memory of a module in pieces by kind
kbp-compat-y += $(call kbp-probe,MODULE_MEM,linux/module.h,struct module_memory[[:space:]]+mem)
# 6.13: hrtimer_setup() replaces hrtimer_init()
kbp-compat-y += $(call kbp-probe,HRTIMER_SETUP,linux/hrtimer.h,void hrtimer_setup\b)
# 6.12: rcu_momentary_eqs(), rcu_momentary_dyntick_idle() before; Debian's 6.1.190 has the new name, 6.1.187 the old one
kbp-compat-y += $(call kbp-probe,RCU_MOMENTARY_EQS,linux/rcutree.h,rcu_momentary_eqs)
# 6.18: arrays of what a CPU has freed; since 7.0 for all slabs, and CONFIG_SLUB_CPU_PARTIAL has gone
kbp-compat-y += $(call kbp-probe,SHEAVES,linux/slab.h,sheaf_capacity)
